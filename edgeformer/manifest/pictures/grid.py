"""Processors that keep the aspect of pictures within limits of their pixels, and cut patches: of Qwen2-VL and later.

Source: transformers/models/qwen2_vl/image_processing_pil_qwen2_vl.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, isqrt, sqrt
from typing import ClassVar, Literal, Self

from edgeformer.config import TowerTextConfig
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError, shown
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.pictures.processor_fields import (
    CLIP_NORMALIZATION,
    LARGEST_SIDE,
    LibraryClass,
    ProcessorFields,
    Resample,
)

MOST_ASPECT = 200
"""Longer side over shorter side of a picture at most, where it is resized to a number of pixels; as in transformers."""


@dataclass(frozen=True, kw_only=True)
class GridProcessor(PictureProcessor):
    """A processor that keeps the aspect of a picture, within limits of its pixels, and cuts it into patches.

    A picture becomes RGB, is resized so that both sides are multiples of `patch` · `square`, is made values of as
    `FixedSizeProcessor` does it, and cut into patches [channels, frames, patch, patch], the picture in each frame.
    Squares of patches come row by row, and so do the patches in them. Source: transformers' Qwen2VLImageProcessorPil.

    Attributes:
        patch: pixels of a side of a patch.
        square: patches of a side of a square, which becomes one state.
        frames: frames of a video in a patch.
        min_pixels, max_pixels: a resized picture has no fewer and no more, as far as whole squares allow.
        resample: the filter.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "Qwen2VL": LibraryClass(
            {
                "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, "resample": 3,
                "do_convert_rgb": True, "default_to_square": False, "patch_size": 14, "temporal_patch_size": 2,
                "merge_size": 2, **CLIP_NORMALIZATION,
            },
            ("min_pixels", "max_pixels"),
        ),
    }  # fmt: skip
    kind: Literal["grid"] = "grid"
    patch: int
    square: int
    frames: int
    min_pixels: int
    max_pixels: int
    resample: Resample

    def __post_init__(self) -> None:
        for field in ("patch", "square", "frames", "min_pixels"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(self.side <= LARGEST_SIDE, self, "patch", f"of squares of {LARGEST_SIDE:,} pixels at most")
        check(self.max_pixels >= max(self.min_pixels, self.side**2), self, "max_pixels", "those of a square or more")
        super().__post_init__()

    @property
    def side(self) -> int:
        """Return the pixels of a side of a square."""
        return self.patch * self.square

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of a picture that is resized, in whole squares."""
        side, pixels = self.side, height * width
        rows, columns = round(height / side), round(width / side)
        if rows * columns * side**2 > self.max_pixels:
            by = sqrt(pixels / self.max_pixels)
            rows, columns = (max(1, floor(each / by / side)) for each in (height, width))
        elif rows * columns * side**2 < self.min_pixels:
            by = sqrt(self.min_pixels / pixels)
            rows, columns = (ceil(each * by / side) for each in (height, width))
        return rows * side, columns * side

    @property
    def most_rows(self) -> int:
        """Return the rows or columns of squares that a picture has at most.

        Rounding makes a picture of the largest aspect at most twice as long for its width.
        """
        return isqrt(2 * MOST_ASPECT * self.max_pixels) // self.side + 1

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the processor of the fields of a file."""
        fields.require({"do_resize": True, "do_center_crop": False}, "patches")
        size = {"shortest_edge": fields.get("min_pixels"), "longest_edge": fields.get("max_pixels")}
        size = fields["size"] | {edge: pixels for edge, pixels in size.items() if pixels is not None}
        # Older files have min_pixels and max_pixels in the size, which transformers does not read.
        least, most = (size.pop(edge, None) for edge in ("shortest_edge", "longest_edge"))
        if least is None or most is None or size.keys() - {"min_pixels", "max_pixels"}:
            raise ConfigError(
                f"{fields.name} has size = {shown(fields['size'])}; it must have shortest_edge and longest_edge."
            )
        return cls(
            patch=fields["patch_size"],
            square=fields["merge_size"],
            frames=fields["temporal_patch_size"],
            min_pixels=least,
            max_pixels=most,
            resample=fields.resample,
            **fields.pixel_values,
        )

    def fitted(self, config: TowerTextConfig) -> TowerTextConfig:
        """Return the config for the pictures that it makes."""
        return config.with_patches(self.patch, self.square, self.frames, self.most_rows * self.square)

    def described(self, states: int | None) -> str:
        """Return the size of pictures, and how many tokens they become."""
        sizes = f"{self.min_pixels:,} to {self.max_pixels:,} pixels"
        return f"{sizes}, a token for each {self.side} × {self.side} of them"


PROCESSOR = GridProcessor
