"""The fields of a file that describes an image processor, as transformers saves it, and values that many of them say.

Source: transformers/image_processing_backends.py (PilBackend).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError, shown

Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Filters of a resize, with the names of Pillow."""

RESAMPLE: dict[int, Resample] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Filters by Pillow's numbers."""

CHANNELS = 3
"""Channels of a picture: red, green, blue."""

LARGEST_SIDE = 4096
"""Pixels of a side of what a graph reads, at most; the largest that is known is 1,536."""

STANDARD = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
CLIP_NORMALIZATION = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip


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


@dataclass(frozen=True)
class LibraryClass:
    """A class of image processors of transformers.

    Attributes:
        defaults: values of absent fields, beside those of all classes.
        others: fields without such a value, and fields that change nothing for pictures.
    """

    defaults: Mapping[str, Any]
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessorFields:
    """The fields of a file.

    Attributes:
        name: of the file.
        values: of all fields that its class knows.
    """

    name: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str) -> Any:
        """Return the value of a field; None where it is absent."""
        return self.values.get(name)

    def require(self, needed: Mapping[str, bool], what: str) -> None:
        """Raise ConfigError unless some fields are true or false, as needed. what: the pictures that they are for."""
        for name, value in needed.items():
            if bool(self[name]) != value:
                raise ConfigError(
                    f"{self.name} has {name} = {shown(self[name])}, which edgeformer does not have for {what}."
                )

    def longest_edge(self, name: str) -> int:
        """Return the number of a size that must be `longest_edge` alone."""
        size = self[name]
        if not isinstance(size, dict) or size.keys() != {"longest_edge"}:
            raise ConfigError(f"{self.name} has {name} = {shown(size)}; it must have longest_edge, and nothing else.")
        edge: int = size["longest_edge"]
        return edge

    def size(self, name: str, value: Any = None) -> PictureSize:
        """Return a size that is a number, a list of height and width, or an object of both. value: in its place."""
        size = self[name] if value is None else value
        if isinstance(size, int):
            return PictureSize(height=size, width=size)
        if isinstance(size, list) and len(size) == 2:
            return PictureSize(height=size[0], width=size[1])
        if not isinstance(size, dict) or size.keys() != {"height", "width"}:
            raise ConfigError(
                f"{self.name} has {name} = {shown(size)}; it must be a number, or have height and width"
                f"{', or shortest_edge' if name == 'size' else ''}."
            )
        return PictureSize(height=size["height"], width=size["width"])

    @property
    def resample(self) -> Resample:
        """Return the filter."""
        number = self["resample"]
        if number not in RESAMPLE:
            raise ConfigError(
                f"{self.name} has resample = {shown(number)}; it must be one of Pillow's filters, 0 to 5."
            )
        return RESAMPLE[number]

    @property
    def pixel_values(self) -> dict[str, Any]:
        """Return what all processors do to values: fields of `PictureProcessor`."""
        normalizes = bool(self["do_normalize"])
        return {
            "scale": float(self["rescale_factor"]) if self["do_rescale"] else None,
            "mean": _per_channel(self["image_mean"]) if normalizes else None,
            "std": _per_channel(self["image_std"]) if normalizes else None,
            "white_background": bool(self["do_convert_rgb"]),
        }


def _per_channel(value: Any) -> tuple[float, ...]:
    """Return a number for each channel of a list, or of one number for all."""
    return tuple(float(each) for each in (value if isinstance(value, list) else [value] * CHANNELS))
