"""Cut pictures of any size into patches: what PaddleOCR-VL sees, bit for bit as transformers does it.

Source: transformers/models/paddleocr_vl/image_processing_pil_paddleocr_vl.py.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.media.pictures.processors.grid import GridPatches, rows_of_squares


class RowGridPatches(GridPatches):
    """The processor that `RowGridProcessor` describes. transformers has its patches row by row, as small pictures."""

    def for_library(self, values: NDArray[Any], grids: NDArray[np.int64] | None) -> dict[str, NDArray[Any]]:
        """Return values of pictures, and what `patch_grid` returns of them, as transformers has them, by its names."""
        assert grids is not None, "of patches"
        rows, patch = np.concatenate(rows_of_squares(values, grids, self.config.square)), self.config.patch
        return {"pixel_values": rows.reshape(len(rows), -1, patch, patch), "image_grid_thw": grids}


PROCESSOR = RowGridPatches
