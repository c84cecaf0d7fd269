"""Processors that make pictures as large as a number of patches allows: of SigLIP 2 (NaFlex).

Source: transformers/models/siglip2/image_processing_pil_siglip2.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, Literal, Self

from edgeformer.documents.schema import check
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.pictures.processor_fields import (
    LARGEST_SIDE,
    STANDARD,
    LibraryClass,
    ProcessorFields,
    Resample,
)

EPSILON, LARGEST_SCALE = 1e-5, 100.0
"""Precision of the search for the factor of both sides, and its upper end."""

MOST_PATCHES = 1 << 16
"""Patches of a picture, at most; the most that is known is 1,024."""


@dataclass(frozen=True, kw_only=True)
class PatchBudgetProcessor(PictureProcessor):
    """A processor that makes a picture as large as a number of patches allows, and cuts it into patches.

    A picture becomes RGB, is resized, smaller or larger, by one factor for both sides, which are rounded up to whole
    patches, is made values of as `FixedSizeProcessor` does it, and cut into patches [patch, patch, channels], row by
    row. Source: transformers' Siglip2ImageProcessorPil.

    Attributes:
        patch: pixels of a side of a patch.
        most_patches: patches of a picture, at most.
        resample: the filter.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "Siglip2": LibraryClass({"resample": 2, "patch_size": 16, "max_num_patches": 256, **STANDARD}, ("size",)),
    }
    kind: Literal["patch_budget"] = "patch_budget"
    patch: int
    most_patches: int
    resample: Resample

    def __post_init__(self) -> None:
        check(0 < self.patch <= LARGEST_SIDE, self, "patch", f"between 1 and {LARGEST_SIDE:,}")
        check(0 < self.most_patches <= MOST_PATCHES, self, "most_patches", f"between 1 and {MOST_PATCHES:,}")
        super().__post_init__()

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of patches of a picture, by transformers' search in its order of operations."""

        def scaled(scale: float) -> tuple[int, int]:
            rows, columns = (max(1, ceil(side * scale / self.patch)) for side in (height, width))
            return rows, columns

        least, most = EPSILON / 10, LARGEST_SCALE
        while most - least >= EPSILON:
            scale = (least + most) / 2
            rows, columns = scaled(scale)
            if rows * columns <= self.most_patches:
                least = scale
            else:
                most = scale
        return scaled(least)

    @property
    def call_options(self) -> dict[str, Any]:
        """Return the numbers of the file, beside which transformers' processor of both has others of its own."""
        return {"patch_size": self.patch, "max_num_patches": self.most_patches}

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the processor of the fields of a file."""
        fields.require({"do_resize": True, "do_center_crop": False}, "patches")
        return cls(
            patch=fields["patch_size"],
            most_patches=fields["max_num_patches"],
            resample=fields.resample,
            **fields.pixel_values,
        )

    def fitted(self, config: Any) -> Any:
        """Return the config for the pictures that it makes."""
        return config.with_patches(self.patch, 1, 1, self.most_patches)

    def described(self, states: int | None) -> str:
        """Return the size of pictures."""
        return f"up to {self.most_patches:,} patches of {self.patch} × {self.patch} pixels"


PROCESSOR = PatchBudgetProcessor
