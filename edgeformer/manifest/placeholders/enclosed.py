"""The placeholder of pictures in tiles between two marks: of InternVL."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import CountedPlaceholder, MarkEncoder, Marks


@dataclass(frozen=True, kw_only=True)
class EnclosedPlaceholder(CountedPlaceholder):
    """A placeholder that becomes the states of all tiles and of the whole picture, between two marks.

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of a tile, and of the whole picture.
        start, end: tokens before and behind the states.
    """

    kind: Literal["enclosed"] = "enclosed"
    start: tuple[int, ...]
    end: tuple[int, ...]

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture of so many tiles beside the whole one; `token` stands for each state."""
        return [*self.start, *[self.token] * (self.count * (rows * columns + 1)), *self.end]


@dataclass(frozen=True, kw_only=True)
class EnclosedMarks(Marks):
    """The marks of an `EnclosedPlaceholder`."""

    start: str
    end: str

    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> EnclosedPlaceholder:
        """Return the placeholder."""
        start, end = encoder.special(self.start), encoder.special(self.end)
        encoder.check_alike(self.picture, self.start, self.end)
        count = pictures.tile_states(encoder.states)
        return EnclosedPlaceholder(token=encoder.token, count=count, start=(start,), end=(end,))


PLACEHOLDER = EnclosedPlaceholder
