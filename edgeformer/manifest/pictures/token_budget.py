"""Processors that make pictures as large as a number of tokens allows, and cut them into patches: of Gemma 4.

Source: transformers/models/gemma4/image_processing_pil_gemma4.py, gemma4_unified/image_processing_gemma4_unified.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, sqrt
from typing import ClassVar, Literal, Self

from edgeformer.config import TowerTextConfig
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError, shown
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.pictures.processor_fields import LARGEST_SIDE, LibraryClass, ProcessorFields, Resample

BUDGETS = (70, 140, 280, 560, 1120)
"""The numbers of tokens that transformers takes."""

GEMMA4 = {
    "resample": 3, "do_convert_rgb": True, "do_normalize": False, "image_mean": [0.0, 0.0, 0.0],
    "image_std": [1.0, 1.0, 1.0], "patch_size": 16, "max_soft_tokens": 280, "pooling_kernel_size": 3, "by_torch": None,
}  # fmt: skip
"""Defaults of the fields of a file, and how pictures are resized."""


@dataclass(frozen=True, kw_only=True)
class TokenBudgetProcessor(PictureProcessor):
    """A processor that makes a picture as large as a number of tokens allows, and cuts it into patches.

    A picture becomes RGB, is resized, smaller or larger, so that both sides are multiples of `patch` · `square` and
    keep its aspect as far as that allows, is made values of as `FixedSizeProcessor` does it, and cut into patches
    [patch, patch, channels]. Squares of patches come row by row, and so do the patches in them. Source: transformers'
    Gemma4ImageProcessorPil.

    That of the unified Gemma 4, which transformers has for torchvision alone, makes one patch of each square of
    patches, and resizes as torch does.

    Attributes:
        patch: pixels of a side of a patch.
        square: patches of a side of a square, which becomes one state.
        max_tokens: states of a picture, at most.
        resample: the filter.
        by_torch: True where pictures are resized and scaled as torch does it; None where Pillow resizes them.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "Gemma4": LibraryClass(GEMMA4, ("image_seq_length", "size")),
        "Gemma4Unified": LibraryClass(GEMMA4 | {"by_torch": True}, ("image_seq_length", "size")),
    }  # fmt: skip
    kind: Literal["token_budget"] = "token_budget"
    patch: int
    square: int
    max_tokens: int
    resample: Resample
    by_torch: bool | None = None

    def __post_init__(self) -> None:
        for field in ("patch", "square", "max_tokens"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(self.side <= LARGEST_SIDE, self, "patch", f"of squares of {LARGEST_SIDE:,} pixels at most")
        super().__post_init__()

    @property
    def side(self) -> int:
        """Return the pixels of a side of a square."""
        return self.patch * self.square

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of a picture that is resized, in whole squares."""
        factor = sqrt(self.max_tokens * self.side**2 / (height * width))
        rows, columns = floor(factor * height / self.side), floor(factor * width / self.side)
        # A picture that is too long for its width keeps less of its length.
        if rows == 0:
            rows, columns = 1, min(width // height, self.max_tokens)
        elif columns == 0:
            rows, columns = min(height // width, self.max_tokens), 1
        return rows * self.side, columns * self.side

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the processor of the fields of a file."""
        fields.require({"do_resize": True, "do_center_crop": False}, "patches")
        if fields["max_soft_tokens"] not in BUDGETS:
            raise ConfigError(
                f"{fields.name} has max_soft_tokens = {shown(fields['max_soft_tokens'])}; transformers takes "
                f"{', '.join(map(str, BUDGETS))}."
            )
        patch, square = fields["patch_size"], fields["pooling_kernel_size"]
        if fields["by_torch"]:
            patch, square = patch * square, 1
        return cls(
            patch=patch,
            square=square,
            max_tokens=fields["max_soft_tokens"],
            resample=fields.resample,
            by_torch=fields["by_torch"],
            **fields.pixel_values,
        )

    def fitted(self, config: TowerTextConfig) -> TowerTextConfig:
        """Return the config for the pictures that it makes."""
        return config.with_patches(self.patch, self.square, 1, self.max_tokens * self.square)

    def described(self, states: int | None) -> str:
        """Return the size of pictures, and how many tokens they become."""
        return f"up to {self.max_tokens:,} tokens, one for each {self.side} × {self.side} pixels"


PROCESSOR = TokenBudgetProcessor
