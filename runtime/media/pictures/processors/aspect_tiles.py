"""Cut pictures into the grid of tiles whose aspect is nearest to theirs, bit for bit as transformers does for InternVL.

Source: transformers/models/got_ocr2/image_processing_pil_got_ocr2.py.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.pictures.aspect_tiles import AspectTilesProcessor
from edgeformer.runtime.media.pictures.processors.processor import Processor, resized
from edgeformer.runtime.media.pictures.processors.tiles import cut
from edgeformer.runtime.media.pictures.resample import Pixels


class AspectTiles(Processor):
    """The processor that `AspectTilesProcessor` describes."""

    config: AspectTilesProcessor

    @cached_property
    def low_detail(self) -> Processor:
        """The processor that makes one tile of the whole picture."""
        return AspectTiles(replace(self.config, min_tiles=1, max_tiles=1)) if self.config.max_tiles > 1 else self

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tiles of a picture of this size; (0, 0) where it is one tile alone."""
        rows, columns = self._nearest_grid(height, width)
        return (0, 0) if rows == columns == 1 else (rows, columns)

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the values of the tiles, row by row, and of the whole picture, float32 [N, 3, height, width]."""
        rows, columns = self._nearest_grid(*pixels.shape[:2])
        height, width, resample = self.config.tile.height, self.config.tile.width, self.config.resample
        tiles = cut(resized(pixels, (rows * height, columns * width), resample), height, width)
        if len(tiles) > 1:
            tiles.append(resized(pixels, (height, width), resample))
        return np.stack([self.normalized(each) for each in tiles])

    def _nearest_grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of the grid for a picture of this size."""
        config = self.config
        pixels = config.tile.height * config.tile.width
        return nearest_grid(height, width, pixels, config.min_tiles, config.max_tiles)


def nearest_grid(height: int, width: int, pixels: int, fewest: int, most: int) -> tuple[int, int]:
    """Return the rows and columns of tiles whose aspect is nearest to that of a picture. pixels: of a tile.

    Of grids that are equally near, the first of the fewest tiles is replaced by later ones while a picture has more
    than half of their pixels.
    """
    found, nearest = (1, 1), float("inf")
    for rows, columns in tile_grids(fewest, most):
        distance = abs(width / height - columns / rows)
        if distance < nearest or (distance == nearest and width * height > 0.5 * pixels * columns * rows):
            found, nearest = (rows, columns), distance
    return found


def tile_grids(fewest: int, most: int) -> list[tuple[int, int]]:
    """Return the rows and columns of all grids of so many tiles: by their number, then by columns."""
    grids = [
        (rows, columns)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if fewest <= rows * columns <= most
    ]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


PROCESSOR = AspectTiles
