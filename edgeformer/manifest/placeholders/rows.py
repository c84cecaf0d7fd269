"""The placeholder of pictures whose tiles are put together in rows: of LLaVA-NeXT and OneVision."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import CountedPlaceholder, MarkEncoder, Marks


@dataclass(frozen=True, kw_only=True)
class RowsPlaceholder(CountedPlaceholder):
    """A placeholder that becomes the states of the whole picture, and rows of states that a learned one ends.

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of the whole picture.
    """

    kind: Literal["rows"] = "rows"

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture with so many rows and columns of states; `token` stands for each."""
        return [self.token] * (self.count + rows * (columns + 1))


@dataclass(frozen=True, kw_only=True)
class RowsMarks(Marks):
    """The marks of a `RowsPlaceholder`."""

    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> RowsPlaceholder:
        """Return the placeholder."""
        return RowsPlaceholder(token=encoder.token, count=pictures.tile_states(encoder.states))


PLACEHOLDER = RowsPlaceholder
