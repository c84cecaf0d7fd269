"""The processor of pictures: every number of what happens to a picture before a graph reads it."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.documents.schema import check

Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Filters of a resize, with the names of Pillow."""

CHANNELS = 3
"""Channels of a picture: red, green, blue."""

LARGEST_SIDE = 4096
"""Pixels of a side of what a graph reads, at most; the largest that is known is 1,536."""


@dataclass(frozen=True, kw_only=True)
class PictureSize:
    """Height and width of a picture, in pixels."""

    height: int
    width: int

    def __post_init__(self) -> None:
        for field in ("height", "width"):
            value = getattr(self, field)
            check(0 < value <= LARGEST_SIDE, self, field, f"between 1 and {LARGEST_SIDE:,}")

    def __str__(self) -> str:
        return f"{self.width} × {self.height}"


@dataclass(frozen=True, kw_only=True)
class Resize:
    """A resize, bit for bit as Pillow computes it.

    Attributes:
        size: of the result; None where `shortest_edge` decides.
        shortest_edge: pixels of the shorter side of the result, whose other side keeps the aspect, rounded down.
        resample: the filter.
    """

    size: PictureSize | None = None
    shortest_edge: int | None = None
    resample: Resample

    def __post_init__(self) -> None:
        check((self.size is None) != (self.shortest_edge is None), self, "size", "set where shortest_edge is not")
        edge = self.shortest_edge
        check(edge is None or 0 < edge <= LARGEST_SIDE, self, "shortest_edge", f"between 1 and {LARGEST_SIDE:,}")


@dataclass(frozen=True, kw_only=True)
class FixedSizeProcessor:
    """A processor that makes `pixel_values` [3, height, width] of one size from every picture.

    A picture becomes RGB, is resized, cut around its centre, multiplied by `scale`, and normalized to
    (x − mean) / std per channel, in this order.

    Attributes:
        resize: None where the crop alone decides about the size.
        crop: size that is cut around the centre, with zeros where the picture is smaller; None for no crop.
        scale: factor of the values 0 to 255; None for 1.
        mean, std: per channel; both None where nothing is normalized.
        white_background: transparent pictures are laid on white; otherwise their transparency is dropped.
    """

    kind: Literal["fixed_size"] = "fixed_size"
    resize: Resize | None = None
    crop: PictureSize | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False

    def __post_init__(self) -> None:
        fixed = self.crop is not None or (self.resize is not None and self.resize.size is not None)
        check(fixed, self, "crop", "set where no resize decides about height and width")
        check((self.mean is None) == (self.std is None), self, "std", "set where there is a mean, and only there")
        for field in ("mean", "std"):
            values = getattr(self, field)
            check(values is None or len(values) == CHANNELS, self, field, f"a list of {CHANNELS} numbers, or None")
        check(self.std is None or all(value > 0 for value in self.std), self, "std", "positive")

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        resized = None if self.resize is None else self.resize.size
        size = self.crop or resized
        assert size is not None
        return size


PictureProcessor = FixedSizeProcessor
"""The kinds of processors, told apart by `kind`."""
