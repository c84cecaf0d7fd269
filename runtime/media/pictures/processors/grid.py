"""Cut pictures of any size into patches: what Qwen2-VL and its successors see, bit for bit as transformers does it.

Source: transformers/models/qwen2_vl/image_processing_pil_qwen2_vl.py.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.pictures.grid import MOST_ASPECT, GridProcessor
from edgeformer.manifest.pictures.processor_fields import CHANNELS
from edgeformer.runtime.media.pictures.processors.processor import Processor, resized
from edgeformer.runtime.media.pictures.resample import Pixels

LOW_SQUARES = 256
"""States of a picture of low detail, at most: 448 × 448 pixels in squares of 28."""


class GridPatches(Processor):
    """The processor that `GridProcessor` describes."""

    config: GridProcessor

    @cached_property
    def low_detail(self) -> Processor:
        """The processor that makes `LOW_SQUARES` states of a picture, or fewer."""
        most = max(self.config.min_pixels, LOW_SQUARES * self.config.side**2)
        return self if most >= self.config.max_pixels else type(self)(replace(self.config, max_pixels=most))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of squares of a picture of this size."""
        rows, columns = (side // self.config.side for side in self.config.resized(height, width))
        return rows, columns

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the patches of a picture, float32 [P, channels · frames · patch²], in squares row by row.

        Raises RequestError for a picture that is too long for its width.
        """
        config, (height, width) = self.config, pixels.shape[:2]
        if max(height, width) > MOST_ASPECT * min(height, width):
            raise RequestError(
                f"{name} is {width:,} × {height:,} pixels, and the model reads pictures whose longer side is at most "
                f"{MOST_ASPECT} times the shorter one. Cut it."
            )
        size = config.resized(height, width)
        values = self.normalized(pixels if size == (height, width) else resized(pixels, size, config.resample))
        return patches_in_squares(values, config.patch, config.square, config.frames)

    def patch_grid(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the grid of patches of a picture of this size as graphs read it, int64 [[1, rows, columns]]."""
        rows, columns = self.grid(height, width)
        return np.array([[1, rows * self.config.square, columns * self.config.square]], np.int64)

    def for_library(self, values: NDArray[Any], grids: NDArray[np.int64] | None) -> dict[str, NDArray[Any]]:
        """Return values of pictures, and what `patch_grid` returns of them, as transformers has them, by its names."""
        assert grids is not None, "of patches"
        return {"pixel_values": values, "image_grid_thw": grids}


def patches_in_squares(values: NDArray[np.float32], patch: int, square: int, frames: int) -> NDArray[np.float32]:
    """Return the patches of values [3, height, width], float32 [P, channels · frames · patch²].

    They come in squares, row by row, and row by row within a square.
    """
    rows, columns = (side // (patch * square) for side in values.shape[1:])
    cut = values.reshape(CHANNELS, rows, square, patch, columns, square, patch)
    patches = cut.transpose(1, 4, 2, 5, 0, 3, 6)  # [row, column, down, right, channel, y, x]
    in_frames = np.broadcast_to(patches[:, :, :, :, :, None], (*patches.shape[:5], frames, patch, patch))
    return in_frames.reshape(rows * columns * square**2, -1)


def rows_of_squares(values: NDArray[Any], grids: NDArray[np.int64], square: int) -> list[NDArray[Any]]:
    """Return the patches of each picture row by row, of those of all in squares. grids: [[1, rows, columns], …]."""
    parts = np.split(values, np.cumsum(grids.prod(1))[:-1])
    return [
        part.reshape(rows // square, columns // square, square, square, -1).swapaxes(1, 2).reshape(len(part), -1)
        for part, (_, rows, columns) in zip(parts, grids.tolist(), strict=True)
    ]


PROCESSOR = GridPatches
