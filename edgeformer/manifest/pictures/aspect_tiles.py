"""Processors that cut pictures into the grid of tiles whose aspect is nearest to theirs: of InternVL.

Source: transformers/models/got_ocr2/image_processing_pil_got_ocr2.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError
from edgeformer.manifest.pictures.fixed_size import FixedSizeProcessor
from edgeformer.manifest.pictures.processor import MOST_TILES, PictureProcessor
from edgeformer.manifest.pictures.processor_fields import (
    CLIP_NORMALIZATION,
    LibraryClass,
    PictureSize,
    ProcessorFields,
    Resample,
)


@dataclass(frozen=True, kw_only=True)
class AspectTilesProcessor(PictureProcessor):
    """A processor that resizes a picture to the grid of tiles whose aspect is nearest to its own, and cuts it.

    A picture becomes RGB, is resized to fill the grid, cut into tiles row by row, and followed by the whole picture at
    the size of a tile; each is made values of as `FixedSizeProcessor` does it. A picture of one tile is that tile
    alone. Source: InternVL (arXiv 2404.16821), transformers' GotOcr2ImageProcessorPil.

    Attributes:
        tile: pixels of a tile, which the graph reads.
        min_tiles, max_tiles: tiles of a grid.
        resample: the filter of all resizes.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "GotOcr2": LibraryClass(
            {
                "size": {"height": 384, "width": 384}, "resample": 3, "do_convert_rgb": True, "crop_to_patches": False,
                "min_patches": 1, "max_patches": 12, **CLIP_NORMALIZATION,
            },
        ),
    }  # fmt: skip
    kind: Literal["aspect_tiles"] = "aspect_tiles"
    tile: PictureSize
    min_tiles: int
    max_tiles: int
    resample: Resample

    def __post_init__(self) -> None:
        check(0 < self.max_tiles <= MOST_TILES, self, "max_tiles", f"between 1 and {MOST_TILES}")
        check(0 < self.min_tiles <= self.max_tiles, self, "min_tiles", f"between 1 and max_tiles ({self.max_tiles})")
        super().__post_init__()

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return self.tile

    @classmethod
    def read(cls, fields: ProcessorFields) -> "AspectTilesProcessor | FixedSizeProcessor":
        """Return the processor of the fields of a file, which may leave pictures whole."""
        if not fields["crop_to_patches"]:
            return FixedSizeProcessor.read(fields)
        if fields["do_center_crop"] or not fields["do_resize"]:
            raise ConfigError(
                f"{fields.name} has do_center_crop = true or do_resize = false beside crop_to_patches = true."
            )
        return cls(
            tile=fields.size("size"),
            min_tiles=fields["min_patches"],
            max_tiles=fields["max_patches"],
            resample=fields.resample,
            **fields.pixel_values,
        )


PROCESSOR = AspectTilesProcessor
