"""Cut pictures into as many patches as a number of tokens allows, bit for bit as transformers does it for Gemma 4.

Source: transformers/models/gemma4/image_processing_pil_gemma4.py, gemma4_unified/image_processing_gemma4_unified.py.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.pictures.processor_fields import CHANNELS
from edgeformer.manifest.pictures.token_budget import BUDGETS, TokenBudgetProcessor
from edgeformer.runtime.media.pictures.processors.grid import rows_of_squares
from edgeformer.runtime.media.pictures.processors.processor import Processor, resized
from edgeformer.runtime.media.pictures.resample import Pixels, resize_as_torch


class TokenBudget(Processor):
    """The processor that `TokenBudgetProcessor` describes."""

    config: TokenBudgetProcessor

    @cached_property
    def low_detail(self) -> Processor:
        """The processor of the smallest number of tokens."""
        fewest = BUDGETS[0]
        return self if self.config.max_tokens <= fewest else type(self)(replace(self.config, max_tokens=fewest))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of squares of a picture of this size."""
        rows, columns = (side // self.config.side for side in self.config.resized(height, width))
        return rows, columns

    def patch_grid(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the grid of patches of a picture of this size as graphs read it, int64 [[1, rows, columns]]."""
        rows, columns = self.grid(height, width)
        return np.array([[1, rows * self.config.square, columns * self.config.square]], np.int64)

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the patches of a picture, float32 [P, patch² · channels], in squares row by row."""
        config, size = self.config, self.config.resized(*pixels.shape[:2])
        values = self.normalized(pixels if size == pixels.shape[:2] else self._resized(pixels, size))
        patch, square = config.patch, config.square
        rows, columns = (side // config.side for side in size)
        cut = values.reshape(CHANNELS, rows, square, patch, columns, square, patch)
        return cut.transpose(1, 4, 2, 5, 3, 6, 0).reshape(rows * columns * square**2, -1)

    def _resized(self, pixels: Pixels, size: tuple[int, int]) -> Pixels:
        """Return the pixels [height, width, 3] of another size."""
        kind = self.config.resample
        return resize_as_torch(pixels, *size, kind) if self.config.by_torch else resized(pixels, size, kind)

    @cached_property
    def _levels(self) -> NDArray[np.float32]:
        """The value of each of the 256 levels, float32 [3, 256], rounded as transformers rounds them."""
        config = self.config
        if not config.by_torch or config.scale is None or config.mean is not None:
            return super()._levels
        return np.tile(np.arange(256, dtype=np.float32) * np.float32(config.scale), (CHANNELS, 1))

    def for_library(self, values: NDArray[Any], grids: NDArray[np.int64] | None) -> dict[str, NDArray[Any]]:
        """Return values of pictures, and what `patch_grid` returns of them, as transformers has them, by its names.

        Patches come row by row there, padded to the most that a picture may have, and with their column and row.
        """
        assert grids is not None, "of patches"
        most = max(self.config.max_tokens * self.config.square**2, *grids.prod(1))
        parts, places = rows_of_squares(values, grids, self.config.square), []
        for _, rows, columns in grids.tolist():
            row, column = np.divmod(np.arange(rows * columns), columns)
            places.append(np.pad(np.stack((column, row), -1), ((0, most - len(row)), (0, 0)), constant_values=-1))
        return {
            "pixel_values": np.stack([np.pad(part, ((0, most - len(part)), (0, 0))) for part in parts]),
            "image_position_ids": np.stack(places),
        }


PROCESSOR = TokenBudget
