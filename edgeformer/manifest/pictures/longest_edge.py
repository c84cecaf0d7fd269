"""Processors that limit the longer side of a picture, and cut it into patches: of Pixtral and Mistral 3.

Source: transformers/models/pixtral/image_processing_pil_pixtral.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Any, ClassVar, Literal, Self

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


@dataclass(frozen=True, kw_only=True)
class LongestEdgeProcessor(PictureProcessor):
    """A processor that keeps the aspect of a picture, makes no side longer than a limit, and cuts it into patches.

    A picture becomes RGB, is resized so that no side is longer than `longest_edge`, and both up to whole squares of
    patches, and is made values of as `FixedSizeProcessor` does it. Squares of patches [channels, patch, patch] come row
    by row, and so do the patches in them. Source: transformers' PixtralImageProcessorPil.

    Attributes:
        patch: pixels of a side of a patch.
        square: patches of a side of a square, which becomes one state.
        longest_edge: pixels of a side at most, before both are rounded up to squares.
        resample: the filter.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "Pixtral": LibraryClass(
            {
                "size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16}, "patch": None, "square": 1,
                "resample": 3, "do_convert_rgb": True, **CLIP_NORMALIZATION,
            },
            ("crop_size", "do_pad"),
        ),
    }  # fmt: skip
    kind: Literal["longest_edge"] = "longest_edge"
    patch: int
    square: int
    longest_edge: int
    resample: Resample

    def __post_init__(self) -> None:
        check(self.patch > 0 and self.square > 0, self, "patch", "positive, as square is")
        check(0 < self.longest_edge <= LARGEST_SIDE, self, "longest_edge", f"between 1 and {LARGEST_SIDE:,}")
        check(self.side <= LARGEST_SIDE, self, "patch", f"of squares of {LARGEST_SIDE:,} pixels at most")
        super().__post_init__()

    @property
    def side(self) -> int:
        """Return the pixels of a side of a square."""
        return self.patch * self.square

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of a picture that is resized, in whole squares; a side of a line may be 0."""
        ratio = max(height, width) / self.longest_edge
        if ratio > 1:
            height, width = floor(height / ratio), floor(width / ratio)
        return -(-height // self.side) * self.side, -(-width // self.side) * self.side

    @property
    def call_options(self) -> dict[str, Any]:
        """Return what transformers' processor of texts and pictures says to that of pictures."""
        return {"patch_size": self.side}

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the processor of the fields of a file."""
        fields.require({"do_resize": True, "do_center_crop": False}, "patches")
        side, square = fields.size("patch_size"), fields["square"]
        patch = fields["patch"] or side.height // square
        if (side.height, side.width) != (patch * square, patch * square):
            raise ConfigError(
                f"{fields.name} has patch_size = {shown(fields['patch_size'])}, and by config.json a state is made of "
                f"{patch * square} × {patch * square} pixels."
            )
        return cls(
            patch=patch,
            square=square,
            longest_edge=fields.longest_edge("size"),
            resample=fields.resample,
            **fields.pixel_values,
        )

    def fitted(self, config: TowerTextConfig) -> TowerTextConfig:
        """Return the config for the pictures that it makes."""
        return config.with_patches(self.patch, self.square, 1, -(-self.longest_edge // self.side) * self.square)

    def described(self, states: int | None) -> str:
        """Return the size of pictures, and how many tokens they become."""
        return f"up to {self.longest_edge:,} pixels a side, a token for each {self.side} × {self.side} of them"


PROCESSOR = LongestEdgeProcessor
