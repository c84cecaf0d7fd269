"""Cut pictures whose longer side has a limit into patches, bit for bit as transformers does it for Pixtral.

Source: transformers/models/pixtral/image_processing_pil_pixtral.py.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.pictures.longest_edge import LongestEdgeProcessor
from edgeformer.manifest.pictures.processor_fields import CHANNELS
from edgeformer.runtime.media.pictures.processors.grid import patches_in_squares
from edgeformer.runtime.media.pictures.processors.processor import Processor, resized
from edgeformer.runtime.media.pictures.resample import Pixels

LOW_SIDE = 16
"""Squares of a side of a picture of low detail, at most."""


class LongestEdge(Processor):
    """The processor that `LongestEdgeProcessor` describes."""

    config: LongestEdgeProcessor

    @cached_property
    def low_detail(self) -> Processor:
        """The processor that makes `LOW_SIDE` squares a side, or fewer."""
        most = LOW_SIDE * self.config.side
        return self if most >= self.config.longest_edge else LongestEdge(replace(self.config, longest_edge=most))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of squares of a picture of this size."""
        rows, columns = (side // self.config.side for side in self.config.resized(height, width))
        return rows, columns

    def patch_grid(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the rows and columns of patches of a picture of this size, [[1, rows, columns]]."""
        rows, columns = self.grid(height, width)
        return np.array([[1, rows * self.config.square, columns * self.config.square]], np.int64)

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the patches of a picture, float32 [P, channels · patch²], in squares row by row.

        Raises RequestError for a line of pixels, of which none are left when it is as short as it has to be.
        """
        config, (height, width) = self.config, pixels.shape[:2]
        size = config.resized(height, width)
        if 0 in size:
            raise RequestError(
                f"{name} is {width:,} × {height:,} pixels, and nothing of it is left when its longer side has "
                f"{config.longest_edge:,}, which are the most that the model reads. Cut it."
            )
        return patches_in_squares(
            self.normalized(resized(pixels, size, config.resample)), config.patch, config.square, 1
        )

    def for_library(self, values: NDArray[Any], grids: NDArray[np.int64] | None) -> dict[str, NDArray[Any]]:
        """Return pictures [N, 3, height, width], padded to the largest, and the height and width of each."""
        assert grids is not None, "of patches"
        patch, square = self.config.patch, self.config.square
        sizes = grids[:, 1:] * patch
        found = np.zeros((len(grids), CHANNELS, *sizes.max(0)), values.dtype)
        parts = np.split(values, np.cumsum(grids.prod(1))[:-1])
        for picture, part, (height, width) in zip(found, parts, sizes.tolist(), strict=True):
            rows, columns = (side // (patch * square) for side in (height, width))
            cut = part.reshape(rows, columns, square, square, CHANNELS, patch, patch)
            picture[:, :height, :width] = cut.transpose(4, 0, 2, 5, 1, 3, 6).reshape(CHANNELS, height, width)
        return {"pixel_values": found, "image_sizes": sizes}


PROCESSOR = LongestEdge
