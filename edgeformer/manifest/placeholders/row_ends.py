"""The placeholder of pictures of any size whose rows end with a token: of Pixtral and Mistral 3."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import MarkEncoder, Marks, Placeholder


@dataclass(frozen=True, kw_only=True)
class RowEndsPlaceholder(Placeholder):
    """A placeholder that becomes a token for each square of a picture, and one behind each row of them.

        token token row_end token token row_end token token end

    Attributes:
        token: the placeholder, which stands for each state, too.
        row_end, end: tokens behind a row that another follows, and behind the last one.
    """

    kind: Literal["row_ends"] = "row_ends"
    row_end: int
    end: int

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture of so many squares; `token` stands for each state."""
        row = [*[self.token] * columns, self.row_end]
        return [*(row * rows)[:-1], self.end]


@dataclass(frozen=True, kw_only=True)
class RowEndsMarks(Marks):
    """The marks of a `RowEndsPlaceholder`."""

    row_end: str
    end: str

    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> RowEndsPlaceholder:
        """Return the placeholder."""
        encoder.check_alike(self.picture, self.picture, self.end)
        row_end, end = encoder.special(self.row_end), encoder.special(self.end)
        return RowEndsPlaceholder(token=encoder.token, row_end=row_end, end=end)


PLACEHOLDER = RowEndsPlaceholder
