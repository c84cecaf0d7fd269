"""Processors that cut pictures into tiles, row by row: of Idefics3 and SmolVLM.

Source: transformers/models/idefics3/image_processing_pil_idefics3.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.pictures.processor_fields import (
    LARGEST_SIDE,
    STANDARD,
    LibraryClass,
    PictureSize,
    ProcessorFields,
    Resample,
)

_TILES: dict[str, Any] = {
    "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}, "resample": 1, "do_convert_rgb": True,
    "do_image_splitting": True, **STANDARD,
}  # fmt: skip
WITHOUT_EFFECT = ("do_pad", "return_row_col_info", "video_sampling")
"""Fields that change nothing for pictures: all of them have one size, which is not padded."""


@dataclass(frozen=True, kw_only=True)
class TilesProcessor(PictureProcessor):
    """A processor that cuts a picture into tiles, row by row, and adds the whole picture at the size of a tile.

    A picture becomes RGB, is resized so that its longer side is `longest_edge`, then so that both sides are multiples
    of a tile, cut, and each tile is made values of as `FixedSizeProcessor` does it. A picture of one tile is that tile
    alone. Source: transformers' Idefics3ImageProcessorPil.

    Attributes:
        tile: pixels of a side of a tile, which the graph reads.
        longest_edge: pixels of the longer side before the picture is cut; None to leave its size.
        splits: whether pictures are cut; otherwise each is resized to one tile.
        resample: the filter of all resizes.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = dict.fromkeys(
        ("Idefics3", "SmolVLM"), LibraryClass(_TILES, WITHOUT_EFFECT)
    )
    kind: Literal["tiles"] = "tiles"
    tile: int
    longest_edge: int | None
    splits: bool = True
    resample: Resample

    def __post_init__(self) -> None:
        check(0 < self.tile <= LARGEST_SIDE, self, "tile", f"between 1 and {LARGEST_SIDE:,}")
        edge = self.longest_edge
        check(edge is None or 0 < edge <= LARGEST_SIDE, self, "longest_edge", f"between 1 and {LARGEST_SIDE:,}")
        super().__post_init__()

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return PictureSize(height=self.tile, width=self.tile)

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the processor of the fields of a file."""
        fields.require({"do_center_crop": False}, "pictures in tiles")
        if fields["do_image_splitting"] and not fields["do_resize"]:
            raise ConfigError(
                f"{fields.name} has do_resize = false, so that a picture could become any number of tiles."
            )
        return cls(
            tile=fields.longest_edge("max_image_size"),
            longest_edge=fields.longest_edge("size") if fields["do_resize"] else None,
            splits=bool(fields["do_image_splitting"]),
            resample=fields.resample,
            **fields.pixel_values,
        )

    @property
    def tile_columns(self) -> tuple[int, ...]:
        """Return how many columns of tiles a picture may have, for each number of rows from 1 on."""
        longest = -(-(self.longest_edge or self.tile) // self.tile) if self.splits else 0
        return (longest,) * longest


PROCESSOR = TilesProcessor
