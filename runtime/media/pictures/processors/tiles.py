"""Cut pictures into tiles, and make values of each: what Idefics3 and SmolVLM see, bit for bit as transformers does it.

Source: transformers/models/idefics3/image_processing_pil_idefics3.py.
"""

import math
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.pictures.processor_fields import LARGEST_SIDE
from edgeformer.manifest.pictures.tiles import TilesProcessor
from edgeformer.runtime.media.pictures.processors.processor import Processor, resized
from edgeformer.runtime.media.pictures.resample import Pixels


class Tiles(Processor):
    """The processor that `TilesProcessor` describes."""

    config: TilesProcessor

    @cached_property
    def low_detail(self) -> Processor:
        """The processor that makes one tile of the whole picture."""
        return Tiles(replace(self.config, splits=False)) if self.config.splits else self

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tiles of a picture of this size; (0, 0) where it is one tile alone."""
        rows, columns = (side // self.config.tile for side in self._cut_size(height, width))
        return (0, 0) if rows == columns == 1 else (rows, columns)

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the values of the tiles, row by row, and of the whole picture, float32 [N, 3, tile, tile]."""
        config, side = self.config, self.config.tile
        if config.longest_edge is not None:
            pixels = self._resized(pixels, longest_edge_size(pixels.shape[0], pixels.shape[1], config.longest_edge))
        if config.splits:
            pixels = self._resized(pixels, whole_tiles_size(pixels.shape[0], pixels.shape[1], side))
        rows, columns = (each // side for each in pixels.shape[:2])
        whole = self._resized(pixels, (side, side))
        if not config.splits or rows == columns == 1:
            return self.normalized(whole)[None]
        return np.stack([self.normalized(each) for each in (*cut(pixels, side, side), whole)])

    def _cut_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of a picture when it is cut."""
        if not self.config.splits:
            return self.config.tile, self.config.tile
        if self.config.longest_edge is not None:
            height, width = longest_edge_size(height, width, self.config.longest_edge)
        return whole_tiles_size(height, width, self.config.tile)

    def _resized(self, pixels: Pixels, size: tuple[int, int]) -> Pixels:
        return pixels if pixels.shape[:2] == size else resized(pixels, size, self.config.resample)


def cut(pixels: Pixels, height: int, width: int) -> list[Pixels]:
    """Return the tiles of pixels that fill whole ones, row by row."""
    return [
        pixels[top : top + height, left : left + width]
        for top in range(0, pixels.shape[0], height)
        for left in range(0, pixels.shape[1], width)
    ]


def longest_edge_size(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return the height and width of a picture whose longer side becomes `longest`; the shorter one becomes even."""
    aspect = width / height
    if width >= height:
        width, height = longest, int(longest / aspect)
        height += height % 2
    else:
        height, width = longest, int(longest * aspect)
        width += width % 2
    assert longest <= LARGEST_SIDE, "a second limit of transformers, which the config keeps"
    return max(height, 1), max(width, 1)


def whole_tiles_size(height: int, width: int, tile: int) -> tuple[int, int]:
    """Return the height and width of a picture that fills whole tiles: the longer side is rounded up first."""
    aspect = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        return math.ceil(int(width / aspect) / tile) * tile, width
    height = math.ceil(height / tile) * tile
    return height, math.ceil(int(height * aspect) / tile) * tile


PROCESSOR = Tiles
