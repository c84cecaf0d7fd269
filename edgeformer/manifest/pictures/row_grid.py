"""Processors that keep the aspect of pictures as those of `grid` do, but for small pictures: of PaddleOCR-VL.

Source: transformers/models/paddleocr_vl/image_processing_pil_paddleocr_vl.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.manifest.pictures.grid import GridProcessor
from edgeformer.manifest.pictures.processor_fields import CLIP_NORMALIZATION, LibraryClass


@dataclass(frozen=True, kw_only=True)
class RowGridProcessor(GridProcessor):
    """A `GridProcessor` that takes a picture with a side shorter than a square for one of that side at least."""

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "PaddleOCRVL": LibraryClass(
            {
                "size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}, "resample": 3,
                "do_convert_rgb": True, "default_to_square": False, "patch_size": 14, "temporal_patch_size": 1,
                "merge_size": 2, **CLIP_NORMALIZATION,
            },
            ("min_pixels", "max_pixels"),
        ),
    }  # fmt: skip
    kind: Literal["row_grid"] = "row_grid"  # type: ignore[assignment]  # of another class of processors

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of a picture that is resized, in whole squares."""
        if height < self.side:
            height, width = self.side, round(width * self.side / height)
        if width < self.side:
            height, width = round(height * self.side / width), self.side
        return super().resized(height, width)


PROCESSOR = RowGridProcessor
