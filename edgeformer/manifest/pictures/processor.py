"""The base class of processors of pictures: how pixels become values, and what others ask of a processor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from edgeformer.documents import schema
from edgeformer.documents.kinds import kinds_of
from edgeformer.documents.schema import check
from edgeformer.manifest.pictures.processor_fields import CHANNELS, LibraryClass, PictureSize, ProcessorFields

MOST_TILES = 64
"""Tiles of a picture, at most, beside the whole picture; the most that are known are 36."""

WHOLE_PICTURES = {"vision": "fixed_size", "naflex_vision": "patch_budget"}
"""Kinds of the processors of models that are towers, or have one as a half, by the kinds of these towers."""


@dataclass(frozen=True, kw_only=True)
class PictureProcessor:
    """A processor of pictures: how it makes values of pixels, and what others ask of it. Each other file is a kind.

    Attributes:
        CLASSES: transformers' classes whose files it is read of, by the beginnings of their names.
        scale: factor of the values 0 to 255; None for 1.
        mean, std: per channel; both None where nothing is normalized.
        white_background: transparent pictures are laid on white; otherwise their transparency is dropped.
    """

    CLASSES: ClassVar[Mapping[str, LibraryClass]] = {}
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False
    kind: str

    def __post_init__(self) -> None:
        check((self.mean is None) == (self.std is None), self, "std", "set where there is a mean, and only there")
        for field in ("mean", "std"):
            values = getattr(self, field)
            check(values is None or len(values) == CHANNELS, self, field, f"a list of {CHANNELS} numbers, or None")
        check(self.std is None or all(value > 0 for value in self.std), self, "std", "positive")

    @classmethod
    def from_json(cls, data: Any, path: str = "") -> "PictureProcessor":
        """Return the processor that `schema.to_json` stored. Raises ConfigError that names the wrong field."""
        return schema.kind_from_json(kinds_of("edgeformer.manifest.pictures", "PROCESSOR"), data, path)

    @classmethod
    def read(cls, fields: ProcessorFields) -> "PictureProcessor":
        """Return the processor of the fields of a file. Raises ConfigError for those that it does not have."""
        raise NotImplementedError

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads. Those that make patches have none."""
        raise NotImplementedError

    @property
    def call_options(self) -> dict[str, Any]:
        """Return what transformers' processor of texts and pictures says to that of pictures beyond its own options."""
        return {}

    def fitted(self, config: Any) -> Any:
        """Return the config for the pictures that it makes. Raises ConfigError where the model does not read them."""
        return config.with_picture_size(self.size.height, self.size.width)

    @property
    def tile_columns(self) -> tuple[int, ...]:
        """Return how many columns of tiles a picture may have, for each number of rows from 1 on; () for one tile."""
        return ()

    def tile_states(self, states: int | None) -> int:
        """Return the states of a tile in a prompt. states: of what the tower reads at once, where that has one size."""
        assert states is not None, "of pictures of one size"
        return states

    def described(self, states: int | None) -> str:
        """Return the size of pictures, and how many tokens they become. states: as in `tile_states`."""
        return f"tiles of {self.size} pixels, {self.tile_states(states):,} tokens each"
