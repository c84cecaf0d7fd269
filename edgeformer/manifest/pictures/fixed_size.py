"""Processors that make pictures of one size: of ViT, DeiT, DINOv2, CLIP, SigLIP, LLaVA and Gemma 3.

Source: transformers/models/*/image_processing_pil_*.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.pictures.processor_fields import (
    CLIP_NORMALIZATION,
    LARGEST_SIDE,
    STANDARD,
    LibraryClass,
    PictureSize,
    ProcessorFields,
    Resample,
)


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

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the resize that a file describes."""
        size = fields["size"]
        if isinstance(size, int) and not fields["default_to_square"]:
            size = {"shortest_edge": size}
        if isinstance(size, dict) and size.keys() == {"shortest_edge"}:
            return cls(shortest_edge=size["shortest_edge"], resample=fields.resample)
        return cls(size=fields.size("size", size), resample=fields.resample)


PAN_AND_SCAN = "do_pan_and_scan"
"""Field of Gemma 3's processor by which pictures are cut, too; others say how."""
COUNT = "image_seq_length"
"""Field that says how many states a picture becomes, of a class that knows its model."""
OTHERS = ("size", "crop_size", "do_pad")
_CLIP: dict[str, Any] = {
    "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "resample": 3, "do_center_crop": True,
    "do_convert_rgb": True, "default_to_square": False, **CLIP_NORMALIZATION,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FixedSizeProcessor(PictureProcessor):
    """A processor that makes `pixel_values` [3, height, width] of one size from every picture.

    A picture becomes RGB, is resized, cut around its centre, multiplied by `scale`, and normalized to
    (x − mean) / std per channel, in this order.

    Attributes:
        resize: None where the crop alone decides about the size.
        crop: size that is cut around the centre, with zeros where the picture is smaller; None for no crop.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "ViT": LibraryClass({"size": {"height": 224, "width": 224}, "resample": 2, **STANDARD}, OTHERS),
        "DeiT": LibraryClass(
            {
                "size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}, "resample": 3,
                "do_center_crop": True, **STANDARD,
            },
            OTHERS,
        ),
        **dict.fromkeys(("CLIP", "Bit", "Llava"), LibraryClass(_CLIP, OTHERS)),
        "Gemma3": LibraryClass(
            {"size": {"height": 224, "width": 224}, "resample": 2, "do_convert_rgb": True, **STANDARD},
            (
                *OTHERS, COUNT, PAN_AND_SCAN, "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops",
                "pan_and_scan_min_ratio_to_activate",
            ),
        ),
        "Siglip": LibraryClass(
            {
                "size": {"height": 224, "width": 224}, "resample": 3, "do_convert_rgb": True,
                "default_to_square": False, **STANDARD,
            },
            (*OTHERS, COUNT),
        ),
    }  # fmt: skip
    kind: Literal["fixed_size"] = "fixed_size"
    resize: Resize | None = None
    crop: PictureSize | None = None

    def __post_init__(self) -> None:
        fixed = self.crop is not None or (self.resize is not None and self.resize.size is not None)
        check(fixed, self, "crop", "set where no resize decides about height and width")
        super().__post_init__()

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        resized = None if self.resize is None else self.resize.size
        size = self.crop or resized
        assert size is not None
        return size

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the processor of the fields of a file."""
        if fields.get(PAN_AND_SCAN):
            raise ConfigError(
                f"{fields.name} has {PAN_AND_SCAN} = true, and edgeformer does not cut pictures for Gemma 3."
            )
        if fields.get("do_pad"):
            raise ConfigError(
                f"{fields.name} has do_pad = true, which edgeformer does not have for pictures of one size."
            )
        return cls(
            resize=Resize.read(fields) if fields["do_resize"] else None,
            crop=fields.size("crop_size") if fields["do_center_crop"] else None,
            **fields.pixel_values,
        )

    def described(self, states: int | None) -> str:
        """Return the size of pictures, and how many tokens they become."""
        return f"{self.size} pixels, {states:,} tokens each"


PROCESSOR = FixedSizeProcessor
