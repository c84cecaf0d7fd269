"""The placeholder of pictures in tiles whose names say which follows: of Idefics3 and SmolVLM."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.errors import RequestError
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import CountedPlaceholder, MarkEncoder, Marks, tile_names


@dataclass(frozen=True, kw_only=True)
class TiledPlaceholder(CountedPlaceholder):
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
    border: tuple[int, ...]
    names: tuple[tuple[tuple[int, ...], ...], ...]
    whole: tuple[int, ...]
    row_end: tuple[int, ...]
    rows_end: tuple[int, ...]

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture of so many tiles beside the whole one; `token` stands for each state.

        Raises RequestError for a picture of more tiles than there are names of.
        """
        if max(rows, columns) > len(self.names):
            raise RequestError(
                f"a picture is cut into {rows} × {columns} tiles, and the model knows {len(self.names)} a side."
            )
        states, found = [self.token] * self.count, list[int]()
        for row in range(rows):
            for column in range(columns):
                found += [*self.border, *self.names[row][column], *states]
            found += self.rows_end if row == rows - 1 else self.row_end
        return [*found, *self.border, *self.whole, *states, *self.border]


@dataclass(frozen=True, kw_only=True)
class TiledMarks(Marks):
    """The marks of a `TiledPlaceholder`. tile: a pattern of {row} and {column}, from 1 on. Others: see there."""

    border: str
    whole: str
    tile: str

    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> TiledPlaceholder:
        """Return the placeholder."""
        border = encoder.special(self.border)
        encoder.check_alike(self.picture, self.border, self.border)
        return TiledPlaceholder(
            token=encoder.token,
            count=pictures.tile_states(encoder.states),
            border=(border,),
            names=tile_names(encoder, pictures, self.border, self.tile, self.picture),
            whole=encoder.between(self.border, self.whole, self.picture),
            row_end=encoder.between(self.picture, "\n", self.border),
            rows_end=encoder.between(self.picture, "\n\n", self.border),
        )


PLACEHOLDER = TiledPlaceholder
