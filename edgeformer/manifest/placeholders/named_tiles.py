"""The placeholder of pictures in tiles, each behind its name, between two marks: of LFM2-VL."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import CountedPlaceholder, MarkEncoder, Marks, tile_names


@dataclass(frozen=True, kw_only=True)
class NamedTilesPlaceholder(CountedPlaceholder):
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
    start: tuple[int, ...]
    names: tuple[tuple[tuple[int, ...], ...], ...]
    whole: tuple[int, ...]
    end: tuple[int, ...]
    special_tokens: bool

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture of so many tiles. more: rows and columns of the states of the whole one."""
        found, (whole_rows, whole_columns) = list(self.start), more or (1, 1)
        for row in range(rows):
            for column in range(columns):
                found += [*self.names[row][column], *[self.token] * self.count]
        name = self.whole if rows * columns else ()
        return [*found, *name, *[self.token] * (whole_rows * whole_columns), *self.end]

    @property
    def bare(self) -> bool:
        """Whether the tokenizer adds no special tokens to a prompt with pictures."""
        return not self.special_tokens


@dataclass(frozen=True, kw_only=True)
class NamedTilesMarks(Marks):
    """The marks of a `NamedTilesPlaceholder`. tile: a pattern of {row} and {column}, from 1 on. Others: see there."""

    start: str
    end: str
    whole: str
    tile: str

    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> NamedTilesPlaceholder:
        """Return the placeholder."""
        encoder.check_alike(self.picture, self.start, self.end)
        return NamedTilesPlaceholder(
            token=encoder.token,
            count=pictures.tile_states(encoder.states),
            start=(encoder.special(self.start),),
            names=tile_names(encoder, pictures, self.picture, self.tile, self.picture),
            whole=encoder.between(self.picture, self.whole, self.picture),
            end=(encoder.special(self.end),),
            special_tokens=False,
        )


PLACEHOLDER = NamedTilesPlaceholder
