"""The base classes of placeholders, and of the marks around a picture as texts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from edgeformer.documents import schema
from edgeformer.documents.kinds import kinds_of
from edgeformer.documents.schema import check
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.prompt_text import PromptText


@dataclass(frozen=True, kw_only=True)
class Placeholder:
    """The tokens that stand for a picture in a prompt, and what others ask of them. A file of the package is a kind.

    Attributes:
        medium: what it stands for, as a word in errors.
        token: the placeholder, which stands for each state of a picture, too.
    """

    medium: ClassVar[str] = "picture"
    kind: str
    token: int

    @classmethod
    def from_json(cls, data: Any, path: str = "") -> "Placeholder":
        """Return the placeholder that `schema.to_json` stored. Raises ConfigError that names the wrong field."""
        return schema.kind_from_json(kinds_of("edgeformer.manifest.placeholders", "PLACEHOLDER"), data, path)

    @abstractmethod
    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture, of what its processor's `grid` says; `token` stands for each state."""

    @property
    def prompt_text(self) -> PromptText | None:
        """Return how prompts are written; None for as they are, with the placeholder in them."""
        return None

    @property
    def bare(self) -> bool:
        """Whether the tokenizer adds no special tokens to a prompt with pictures."""
        return False

    def check_prompt(self, tokens: Sequence[int]) -> None:
        """Raise RequestError for a prompt with a placeholder of what is not read."""


@dataclass(frozen=True, kw_only=True)
class CountedPlaceholder(Placeholder):
    """The base class of placeholders of pictures whose parts have one size.

    Attributes:
        count: states of a part: of a tile, or of a whole picture.
    """

    count: int

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")


class MarkEncoder(Protocol):
    """Encodes marks by a tokenizer, in the places where they stand. Raises ConfigError where it cannot.

    Attributes:
        token: the id of the placeholder.
        video, sound: the ids of the placeholders of a video and of a recording; None where there is none.
        states: states of what the tower reads at once; None where its size decides.
    """

    token: int
    video: int | None
    sound: int | None
    states: int | None

    def special(self, text: str) -> int:
        """Return the id of a text that is one token, also between others."""
        ...

    def between(self, before: str, text: str, after: str) -> tuple[int, ...]:
        """Return the ids of a text between two special tokens."""
        ...

    def check_alike(self, one: str, first: str, last: str) -> None:
        """Check that text around a placeholder is encoded as around the marks that take its place."""
        ...


@dataclass(frozen=True, kw_only=True)
class Marks(ABC):
    """The texts of the tokens around a picture.

    Attributes:
        picture: the placeholder.
    """

    picture: str = "<image>"

    @property
    def spelled(self) -> str:
        """Return the text that stands for a picture in a prompt."""
        return self.picture

    @abstractmethod
    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> Placeholder:
        """Return the placeholder of pictures that such a processor makes."""


def tile_names(
    encoder: MarkEncoder, pictures: PictureProcessor, before: str, name: str, after: str
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the ids of the names of tiles, by row and column; name: a pattern of {row} and {column}, from 1 on."""
    return tuple(
        tuple(encoder.between(before, name.format(row=row, column=column), after) for column in range(1, columns + 1))
        for row, columns in enumerate(pictures.tile_columns, 1)
    )
