"""Placeholders of pictures: the tokens that stand for a picture in a prompt, and how a prompt is written."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class PromptText:
    """How the text of a prompt with pictures is written before it is encoded, as transformers' processor writes it.

    Tokens at its seams follow from the text around: a line break before a picture of Gemma 3 becomes one token with
    those that its processor writes there.

    Attributes:
        spelled: stands for a picture in a prompt.
        written: what takes its place, with the placeholder in it.
        after_last: written behind the last picture.
        end: written behind the prompt.
        adds_special_tokens: whether the tokenizer then adds its special tokens, where it adds any.
    """

    spelled: str
    written: str
    after_last: str = ""
    end: str = ""
    adds_special_tokens: bool = True

    def __post_init__(self) -> None:
        check(self.spelled != "", self, "spelled", "a text that stands for a picture")

    def of(self, prompt: str) -> str:
        """Return the text to encode of a prompt; one without pictures stays as it is."""
        before, spelled, behind = prompt.rpartition(self.spelled)
        if not spelled:
            return prompt
        return f"{before.replace(self.spelled, self.written)}{self.written}{self.after_last}{behind}{self.end}"


@dataclass(frozen=True, kw_only=True)
class RepeatedPlaceholder:
    """A placeholder of a picture in a prompt that becomes the same token, once for each of the picture's states.

    Attributes:
        token: the placeholder.
        count: states of a picture.
        text: how prompts are written; None for as they are, with the placeholder in them.
    """

    kind: Literal["repeated"] = "repeated"
    token: int
    count: int
    text: PromptText | None = None

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture; `token` stands for each state. It is not cut into rows and columns."""
        return [self.token] * self.count


@dataclass(frozen=True, kw_only=True)
class TiledPlaceholder:
    """A placeholder that becomes marks which say which tile of a picture follows, and the states of the tile.

        border name(1, 1) token × count border name(1, 2) … row_end border name(2, 1) … rows_end
        border whole token × count border

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of a tile.
        border: tokens before each tile and behind the last one.
        names: of tiles, by row and column.
        whole: name of the whole picture.
        row_end, rows_end: tokens behind a row that another follows, and behind the last one.
    """

    kind: Literal["tiles"] = "tiles"
    token: int
    count: int
    border: tuple[int, ...]
    names: tuple[tuple[tuple[int, ...], ...], ...]
    whole: tuple[int, ...]
    row_end: tuple[int, ...]
    rows_end: tuple[int, ...]

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture of so many tiles beside the whole one; `token` stands for each state."""
        states, found = [self.token] * self.count, list[int]()
        for row in range(rows):
            for column in range(columns):
                found += [*self.border, *self.names[row][column], *states]
            found += self.rows_end if row == rows - 1 else self.row_end
        return [*found, *self.border, *self.whole, *states, *self.border]


@dataclass(frozen=True, kw_only=True)
class GridPlaceholder:
    """A placeholder that becomes the same token, once for each square of a picture of any size.

    Attributes:
        token: the placeholder.
        video: the placeholder of a video, which is not read; None where there is none.
    """

    kind: Literal["grid"] = "grid"
    token: int
    video: int | None = None

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture of so many squares; `token` stands for each state."""
        return [self.token] * (rows * columns)


@dataclass(frozen=True, kw_only=True)
class EnclosedPlaceholder:
    """A placeholder that becomes the states of all tiles and of the whole picture, between two marks.

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of a tile, and of the whole picture.
        start, end: tokens before and behind the states.
    """

    kind: Literal["enclosed"] = "enclosed"
    token: int
    count: int
    start: tuple[int, ...]
    end: tuple[int, ...]

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture of so many tiles beside the whole one; `token` stands for each state."""
        return [*self.start, *[self.token] * (self.count * (rows * columns + 1)), *self.end]


@dataclass(frozen=True, kw_only=True)
class RowsPlaceholder:
    """A placeholder that becomes the states of the whole picture, and rows of states that a learned one ends.

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of the whole picture.
    """

    kind: Literal["rows"] = "rows"
    token: int
    count: int

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture with so many rows and columns of states; `token` stands for each."""
        return [self.token] * (self.count + rows * (columns + 1))


@dataclass(frozen=True, kw_only=True)
class NamedTilesPlaceholder:
    """A placeholder that becomes the states of tiles, each behind its name, and of the whole picture, between marks.

        start name(1, 1) token × count name(1, 2) … whole token × rows · columns end

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of a tile.
        start, end: tokens before and behind all of these.
        names: of tiles, by row and column.
        whole: name of the whole picture, where tiles stand before it.
        special_tokens: whether the tokenizer adds its special tokens to a prompt with pictures.
    """

    kind: Literal["named_tiles"] = "named_tiles"
    token: int
    count: int
    start: tuple[int, ...]
    names: tuple[tuple[tuple[int, ...], ...], ...]
    whole: tuple[int, ...]
    end: tuple[int, ...]
    special_tokens: bool

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int, whole_rows: int = 1, whole_columns: int = 1) -> list[int]:
        """Return the tokens of a picture of so many tiles beside the whole one, which has so many states."""
        found = list(self.start)
        for row in range(rows):
            for column in range(columns):
                found += [*self.names[row][column], *[self.token] * self.count]
        name = self.whole if rows * columns else ()
        return [*found, *name, *[self.token] * (whole_rows * whole_columns), *self.end]


Placeholder = (
    GridPlaceholder
    | RepeatedPlaceholder
    | TiledPlaceholder
    | EnclosedPlaceholder
    | RowsPlaceholder
    | NamedTilesPlaceholder
)
"""The kinds of placeholders, told apart by `kind`."""
