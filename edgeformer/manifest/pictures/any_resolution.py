"""Processors that fit pictures into grids of tiles, whose states are put together again: of LLaVA-NeXT and OneVision.

Source: transformers/models/llava_next/image_processing_pil_llava_next.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError, shown
from edgeformer.manifest.pictures.processor import MOST_TILES, PictureProcessor
from edgeformer.manifest.pictures.processor_fields import (
    CLIP_NORMALIZATION,
    LARGEST_SIDE,
    LibraryClass,
    PictureSize,
    ProcessorFields,
    Resample,
)

_BOTH: dict[str, Any] = {
    "resample": 3, "do_convert_rgb": True, "default_to_square": False, "do_pad": True, "patches": None,
    "max_tiles": None, "squares": False, "grids_of_model": None, **CLIP_NORMALIZATION,
}  # fmt: skip
"""Defaults of both classes; the model's config says what has none."""


@dataclass(frozen=True, kw_only=True)
class AnyResolutionProcessor(PictureProcessor):
    """A processor that fits a picture into a grid of tiles, and puts the states of the tiles together again.

    The whole picture is resized to a tile, whatever its aspect. Then the picture is resized to the largest that keeps
    its aspect in the grid that loses the fewest of its pixels, surrounded by zeros, and cut into tiles row by row. Of
    the states of the tiles, one image, rows and columns that show nothing but these zeros are left out, and a learned
    state ends each row. Source: LLaVA-NeXT, transformers' LlavaNextImageProcessorPil, LlavaNextModel.

    Attributes:
        tile: pixels of a side of a tile, which the graph reads.
        patches: states of a side of a tile.
        grids: rows and columns of tiles that a picture may be fit into.
        max_tiles: the states of a picture of more than 1.21 times so many tiles are interpolated to as many as these
            have; None for no limit. Source: LLaVA-OneVision (arXiv 2408.03326).
        squares: whether a picture that is not alone in a prompt is made a square of one tile instead, with the mean
            colour beside it.
        resample: the filter of all resizes.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "LlavaNext": LibraryClass(
            {
                **_BOTH, "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224},
                "do_center_crop": True,
                "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
            },
        ),
        "LlavaOnevision": LibraryClass(
            {
                **_BOTH, "size": {"height": 384, "width": 384}, "crop_size": None,
                "image_grid_pinpoints": [[384 * y, 384 * x] for y in range(1, 7) for x in range(1, 7)],
            },
        ),
    }  # fmt: skip
    kind: Literal["any_resolution"] = "any_resolution"
    tile: int
    patches: int
    grids: tuple[tuple[int, int], ...]
    max_tiles: int | None = None
    squares: bool = False
    resample: Resample

    def __post_init__(self) -> None:
        check(0 < self.tile <= LARGEST_SIDE, self, "tile", f"between 1 and {LARGEST_SIDE:,}")
        check(0 < self.patches <= self.tile, self, "patches", "between 1 and tile")
        fits = all(len(grid) == 2 and min(grid) > 0 and grid[0] * grid[1] <= MOST_TILES for grid in self.grids)
        check(len(self.grids) > 0 and fits, self, "grids", f"pairs of numbers, each of {MOST_TILES} tiles at most")
        check(self.max_tiles is None or self.max_tiles > 0, self, "max_tiles", "positive, or None")
        check(not self.squares or self.mean is not None, self, "squares", "False without a mean colour")
        super().__post_init__()

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return PictureSize(height=self.tile, width=self.tile)

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the processor of the fields of a file."""
        name, size, pinpoints = fields.name, fields["size"], fields["image_grid_pinpoints"]
        sides = set(size.values()) if size.keys() in ({"shortest_edge"}, {"height", "width"}) else set()
        if fields["do_center_crop"] or fields["crop_size"] is not None:
            crop = fields.size("crop_size")
            sides |= {crop.height, crop.width}
        if len(sides) != 1 or not fields["do_resize"]:
            raise ConfigError(
                f"{name} has size = {shown(size)}; it must be one square, that of crop_size, and do_resize."
            )
        [tile] = sides
        if any(side % tile for pinpoint in pinpoints for side in pinpoint):
            raise ConfigError(f"{name} has image_grid_pinpoints that are not made of tiles of {tile} × {tile} pixels.")
        if fields["grids_of_model"] not in (None, pinpoints):
            raise ConfigError(f"{name} has other image_grid_pinpoints than config.json.")
        return cls(
            tile=tile,
            patches=fields["patches"] or 1,
            grids=tuple((height // tile, width // tile) for height, width in pinpoints),
            max_tiles=fields["max_tiles"],
            squares=fields["squares"],
            resample=fields.resample,
            **fields.pixel_values,
        )

    def tile_states(self, states: int | None) -> int:
        """Return the states of a tile in a prompt: without the newline, which stands in rows of all tiles."""
        return self.patches**2


PROCESSOR = AnyResolutionProcessor
