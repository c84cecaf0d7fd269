"""Cut pictures of any size into tiles and patches, bit for bit as transformers does it for LFM2-VL by torchvision.

Source: transformers/models/lfm2_vl/image_processing_lfm2_vl.py.
"""

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import PATCH_MASK, SHAPES
from edgeformer.errors import RequestError
from edgeformer.manifest.pictures.patch_tiles import PatchTilesProcessor
from edgeformer.manifest.pictures.processor_fields import CHANNELS
from edgeformer.runtime.media.pictures.processors.aspect_tiles import nearest_grid
from edgeformer.runtime.media.pictures.processors.grid import rows_of_squares
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.media.pictures.processors.tiles import cut
from edgeformer.runtime.media.pictures.resample import Pixels, resize_as_torch


class PatchTiles(Processor):
    """The processor that `PatchTilesProcessor` describes."""

    config: PatchTilesProcessor

    @cached_property
    def low_detail(self) -> Processor:
        """The processor that cuts no picture into tiles."""
        config = self.config
        return self if config.max_tiles == 1 else PatchTiles(replace(config, min_tiles=1, max_tiles=1))

    def grid(self, height: int, width: int) -> tuple[int, ...]:
        """Return the rows and columns of tiles, (0, 0) where a picture is not cut; then those of the whole's states."""
        whole = (side // self.config.side for side in self._whole_size(height, width))
        return (*self._tiles(height, width), *whole)

    def patch_grid(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the rows and columns of patches of each picture that the tower reads, [[1, rows, columns], …]."""
        rows, columns, *whole = self.grid(height, width)
        side = self.config.tile // self.config.patch
        of_whole = [1, *(each * self.config.square for each in whole)]
        return np.array([[1, side, side]] * (rows * columns) + [of_whole], np.int64)

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the patches of the tiles, row by row, and of the whole picture, float32 [P, patch² · 3].

        Raises RequestError for a picture that is too long for its width.
        """
        config, (height, width) = self.config, pixels.shape[:2]
        size = self._whole_size(height, width)
        if size[0] * size[1] > config.most_patches * config.patch**2:
            raise RequestError(
                f"{name} is {width:,} × {height:,} pixels, which is too long for its width: the model reads "
                f"{config.most_patches:,} patches of a picture. Cut it."
            )
        rows, columns = self._tiles(height, width)
        pictures = [resize_as_torch(pixels, *size, config.resample)]
        if rows:
            resized = resize_as_torch(pixels, rows * config.tile, columns * config.tile, config.resample)
            pictures = [*cut(resized, config.tile, config.tile), *pictures]
        return np.concatenate([self._patches(each) for each in pictures])

    def _patches(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return the patches of pixels in squares, row by row."""
        patch, square = self.config.patch, self.config.square
        rows, columns = (each // self.config.side for each in pixels.shape[:2])
        values = self.normalized(pixels).reshape(CHANNELS, rows, square, patch, columns, square, patch)
        return values.transpose(1, 4, 2, 5, 3, 6, 0).reshape(rows * columns * square**2, -1)

    def for_library(self, values: NDArray[Any], grids: NDArray[np.int64] | None) -> dict[str, NDArray[Any]]:
        """Return values of pictures, and what `patch_grid` returns of them, as transformers has them, by its names.

        Patches come row by row there, padded to the most that a picture has.
        """
        assert grids is not None, "of patches"
        counts = grids.prod(1)
        most = counts.max()
        parts = rows_of_squares(values, grids, self.config.square)
        found = np.stack([np.pad(part, ((0, most - len(part)), (0, 0))) for part in parts])
        mask = np.arange(most) < counts[:, None]
        return {"pixel_values": found, PATCH_MASK: mask.astype(np.int32), SHAPES: grids[:, 1:]}

    @cached_property
    def _levels(self) -> NDArray[np.float32]:
        """The value of each of the 256 levels, float32 [3, 256], rounded as torchvision rounds them."""
        config = self.config
        if config.scale is None or config.mean is None or config.std is None:
            return super()._levels
        by = np.float32(1.0 / config.scale)
        mean, std = (np.array(each, np.float32)[:, None] * by for each in (config.mean, config.std))
        levels: NDArray[np.float32] = (np.arange(256, dtype=np.float32) - mean) / std
        return levels

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tiles; (0, 0) where a picture is not cut."""
        config = self.config
        rounded = (max(config.patch, round(each / config.side) * config.side) for each in (height, width))
        large = math.prod(rounded) > config.max_tokens * config.side**2 * config.tolerance
        if not large or config.max_tiles == 1:
            return 0, 0
        return nearest_grid(height, width, config.tile**2, config.min_tiles, config.max_tiles)

    def _whole_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the whole picture, in whole squares."""
        config, side = self.config, self.config.side
        least, most = config.min_tokens * side**2, config.max_tokens * side**2
        tall, wide = (max(side, round(each / side) * side) for each in (height, width))
        if tall * wide > most:
            by = math.sqrt(height * width / most)
            tall, wide = (max(side, math.floor(each / by / side) * side) for each in (height, width))
        elif tall * wide < least:
            by = math.sqrt(least / (height * width))
            tall, wide = (math.ceil(each * by / side) * side for each in (height, width))
        return tall, wide


PROCESSOR = PatchTiles
