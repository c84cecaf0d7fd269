"""Make pictures as large as a number of patches allows, bit for bit as transformers does it for SigLIP 2 (NaFlex).

Source: transformers/models/siglip2/image_processing_pil_siglip2.py.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import PATCH_MASK, SHAPES
from edgeformer.manifest.pictures.patch_budget import PatchBudgetProcessor
from edgeformer.manifest.pictures.processor_fields import CHANNELS
from edgeformer.runtime.media.pictures.picture_files import Picture
from edgeformer.runtime.media.pictures.processors.processor import Processor, resized
from edgeformer.runtime.media.pictures.resample import Pixels


class PatchBudget(Processor):
    """The processor that `PatchBudgetProcessor` describes."""

    config: PatchBudgetProcessor

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of patches of a picture of this size."""
        return self.config.grid(height, width)

    def patch_grid(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the rows and columns of patches of a picture of this size, [[1, rows, columns]]."""
        return np.array([[1, *self.grid(height, width)]], np.int64)

    def pixel_values(self, picture: Picture, name: str = "the picture") -> NDArray[np.float32]:
        """Return the patches of a picture, float32 [rows, columns, patch² · 3]. Raises as `read_picture`."""
        pixels = self.read(picture, name)
        return self.values(pixels, name).reshape(*self.grid(*pixels.shape[:2]), -1)

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the patches of a picture row by row, float32 [P, patch² · 3]."""
        patch, (rows, columns) = self.config.patch, self.grid(*pixels.shape[:2])
        values = self.normalized(resized(pixels, (rows * patch, columns * patch), self.config.resample))
        cut = values.reshape(CHANNELS, rows, patch, columns, patch)
        return cut.transpose(1, 3, 2, 4, 0).reshape(rows * columns, -1)

    def for_library(self, values: NDArray[Any], grids: NDArray[np.int64] | None) -> dict[str, NDArray[Any]]:
        """Return values of pictures, and what `patch_grid` returns of them, as transformers has them, by its names.

        Patches are padded to the most that a picture may have.
        """
        assert grids is not None, "of patches"
        counts = grids.prod(1)
        parts = np.split(values, np.cumsum(counts)[:-1])
        most = self.config.most_patches
        return {
            "pixel_values": np.stack([np.pad(part, ((0, most - len(part)), (0, 0))) for part in parts]),
            PATCH_MASK: (np.arange(most) < counts[:, None]).astype(np.int32),
            SHAPES: grids[:, 1:],
        }


PROCESSOR = PatchBudget
