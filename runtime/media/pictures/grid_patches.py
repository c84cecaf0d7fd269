"""Cut pictures of any size into patches: what Qwen2-VL and its successors see, bit for bit as transformers does it.

Source: transformers/models/qwen2_vl/image_processing_pil_qwen2_vl.py.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.pictures import CHANNELS, MOST_ASPECT, GridProcessor
from edgeformer.runtime.media.pictures.processor import Processor, resized
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
        return self if most >= self.config.max_pixels else GridPatches(replace(self.config, max_pixels=most))

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
        patch, square, (rows, columns) = config.patch, config.square, self.grid(height, width)
        cut = values.reshape(CHANNELS, rows, square, patch, columns, square, patch)
        patches = cut.transpose(1, 4, 2, 5, 0, 3, 6)[
            :, :, :, :, :, None
        ]  # [row, column, down, right, channel, 1, y, x]
        frames = np.broadcast_to(patches, (*patches.shape[:5], config.frames, patch, patch))
        return frames.reshape(rows * columns * square**2, -1)

    def patch_grid(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the grid of patches of a picture of this size as graphs read it, int64 [[1, rows, columns]]."""
        rows, columns = self.grid(height, width)
        return np.array([[1, rows * self.config.square, columns * self.config.square]], np.int64)
