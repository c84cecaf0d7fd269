"""Processors that cut large pictures into tiles, and pictures of any size into patches: of LFM2-VL.

Source: transformers/models/lfm2_vl/image_processing_lfm2_vl.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from edgeformer.config import TowerTextConfig
from edgeformer.documents.schema import check
from edgeformer.manifest.pictures.processor import MOST_TILES, PictureProcessor
from edgeformer.manifest.pictures.processor_fields import (
    LARGEST_SIDE,
    STANDARD,
    LibraryClass,
    ProcessorFields,
    Resample,
)

WITHOUT_EFFECT = ("size", "return_row_col_info", "max_num_patches")
"""Fields that change nothing: patches are padded for batches of pictures, and the sizes are those of tiles."""


@dataclass(frozen=True, kw_only=True)
class PatchTilesProcessor(PictureProcessor):
    """A processor that keeps the aspect of a small picture, cuts a large one into tiles, and both into patches.

    A picture becomes RGB and is resized to whole squares of patches with about its aspect, as many as become
    `min_tokens` to `max_tokens` states. A picture of more than `tolerance` times so many is also resized to the grid of
    tiles whose aspect is nearest to its own, and cut into tiles, row by row; the whole one follows them. Resizes are
    those of torch. Squares of patches come row by row, and so do the patches [patch, patch, channels] in them; their
    values are (x − mean / scale) / (std / scale). Source: transformers' Lfm2VlImageProcessor.

    Attributes:
        patch: pixels of a side of a patch.
        square: patches of a side of a square, which becomes one state.
        tile: pixels of a side of a tile.
        min_tiles, max_tiles: tiles of a grid; both 1 where no picture is cut.
        min_tokens, max_tokens: states of a picture that is not cut.
        tolerance: see above.
        resample: the filter of all resizes.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {
        "Lfm2Vl": LibraryClass(
            {
                "resample": 2, "downsample_factor": 2, "do_image_splitting": True, "min_tiles": 2, "max_tiles": 10,
                "use_thumbnail": True, "min_image_tokens": 64, "max_image_tokens": 256, "encoder_patch_size": 16,
                "tile_size": 512, "max_pixels_tolerance": 2.0, "do_pad": True, **STANDARD,
            },
            WITHOUT_EFFECT,
        ),
    }  # fmt: skip
    kind: Literal["patch_tiles"] = "patch_tiles"
    patch: int
    square: int
    tile: int
    min_tiles: int
    max_tiles: int
    min_tokens: int
    max_tokens: int
    tolerance: float
    resample: Resample

    def __post_init__(self) -> None:
        check(self.patch > 0 and self.square > 0, self, "patch", "positive, as square is")
        fits = 0 < self.tile <= LARGEST_SIDE and self.tile % self.side == 0
        check(fits, self, "tile", f"a multiple of {self.side} pixels, up to {LARGEST_SIDE:,}")
        # With one tile, states are counted as for another size.
        tiles = self.min_tiles == self.max_tiles == 1 or 2 <= self.min_tiles <= self.max_tiles <= MOST_TILES
        check(tiles, self, "min_tiles", f"1 as max_tiles, or 2 to {MOST_TILES} and no more than max_tiles")
        check(0 < self.min_tokens <= self.max_tokens, self, "min_tokens", "positive, and no more than max_tokens")
        check(self.max_tokens * self.side**2 <= LARGEST_SIDE**2, self, "max_tokens", f"of {LARGEST_SIDE:,}² pixels")
        check(self.tolerance > 0, self, "tolerance", "positive")
        super().__post_init__()

    @property
    def side(self) -> int:
        """Return the pixels of a side of a square."""
        return self.patch * self.square

    @property
    def most_patches(self) -> int:
        """Return the patches of a picture that the tower reads at most."""
        return max(self.max_tokens * self.square**2, (self.tile // self.patch) ** 2)

    @classmethod
    def read(cls, fields: ProcessorFields) -> Self:
        """Return the processor of the fields of a file."""
        needed = {"use_thumbnail": True, "do_pad": True, "do_center_crop": False}
        fields.require(needed, "pictures in tiles of patches")
        splits = bool(fields["do_image_splitting"])
        return cls(
            patch=fields["encoder_patch_size"],
            square=fields["downsample_factor"],
            tile=fields["tile_size"],
            min_tiles=fields["min_tiles"] if splits else 1,
            max_tiles=fields["max_tiles"] if splits else 1,
            min_tokens=fields["min_image_tokens"],
            max_tokens=fields["max_image_tokens"],
            tolerance=fields["max_pixels_tolerance"],
            resample=fields.resample,
            **fields.pixel_values,
        )

    def fitted(self, config: TowerTextConfig) -> TowerTextConfig:
        """Return the config for the pictures that it makes."""
        return config.with_patches(self.patch, self.square, 1, self.most_patches // self.square)

    @property
    def tile_columns(self) -> tuple[int, ...]:
        """Return how many columns of tiles a picture may have, for each number of rows from 1 on."""
        return tuple(self.max_tiles // rows for rows in range(1, self.max_tiles + 1)) if self.max_tiles > 1 else ()

    def tile_states(self, states: int | None) -> int:
        """Return the states of a tile in a prompt."""
        return (self.tile // self.side) ** 2

    def described(self, states: int | None) -> str:
        """Return the size of pictures, and how many tokens they become."""
        sizes = f"{self.min_tokens:,} to {self.max_tokens:,} tokens by size"
        return f"{sizes}, and larger ones in up to {self.max_tiles} tiles of {self.tile} pixels a side"


PROCESSOR = PatchTilesProcessor
