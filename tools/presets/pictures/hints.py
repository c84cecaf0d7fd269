"""Parts of a loss by which states inside a text model tell where in a picture they are and where an answer is.

What states tell is read by fixed directions, drawn from a seed: no parameter is added that a checkpoint would have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from presets.packing import IGNORED
from presets.pictures.questions import PLURALS, Asked, in_quarters
from presets.pictures.scenes import COLOURS, COUNTS, DIGITS, GRID, KINDS, Scene, cells_by_tile

CELLS = GRID * GRID

PLACE, RANK = 0, 1
"""Blocks behind which the state of a cell tells its place, and how many things are before its own."""

WORD = 1
"""The block behind which a word for a colour or a kind tells the cells that have it."""

MEANT, TOLD = 2, 4
"""Blocks behind which the last token of a question tells the cells of what its words mean, and of what it asks for."""

CELL_WEIGHT, WORD_WEIGHT, POINTER_WEIGHT = 0.2, 0.3, 0.4


@dataclass(frozen=True)
class Pointers:
    """The cells that tokens are to point at.

    meant, told: [N, S, cells], 1 where a token points at a cell. asks, tells: bool [N, S], the tokens that do.
    """

    meant: Tensor
    told: Tensor
    asks: Tensor
    tells: Tensor

    @classmethod
    def none(cls, count: int, length: int) -> "Pointers":
        """Return such of tokens that point at nothing."""
        cells, tokens = torch.zeros(count, length, CELLS), torch.zeros(count, length, dtype=torch.bool)
        return cls(cells, cells.clone(), tokens, tokens.clone())

    def set(self, row: int, tokens: Sequence[int], asked: Asked) -> None:
        """Let the last token of a question, and those that begin further things of the answer, point at its cells."""
        self.asks[row, tokens[0]] = True
        self.meant[row, tokens[0], list(asked.meant)] = 1
        for token, cells in zip(tokens, asked.told, strict=False):
            self.tells[row, token] = True
            self.told[row, token, list(cells)] = 1

    def view(self, rows: int) -> "Pointers":
        """Return them by rows of questions: [B, Q, S, …]."""
        return Pointers(*(each.unflatten(0, (rows, -1)) for each in (self.meant, self.told, self.asks, self.tells)))


def normalized(states: Tensor) -> Tensor:
    """Return states whose numbers have a mean square of 1, in float32."""
    return F.rms_norm(states.float(), states.shape[-1:])


@cache
def directions(name: str, count: int, size: int) -> Tensor:
    """Return directions [size, count] of length 2 by which states of that size are read."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return 2 * F.normalize(torch.randn(size, count, generator=generator), dim=0)


def told(states: Tensor, name: str, count: int) -> Tensor:
    """Return how much states tell of each of `count` things, [..., count]."""
    return normalized(states) @ directions(name, count, states.shape[-1])


def loss_of_cells(states: Sequence[Tensor], scenes: Sequence[Scene]) -> Tensor:
    """Return the loss of what states of cells tell behind each block: [B, cells, E], in the order of tiles."""
    places = torch.tensor(cells_by_tile()).expand(len(scenes), -1)
    place = F.cross_entropy(told(states[PLACE], "place", CELLS).flatten(0, 1), places.flatten())
    ranks, order = torch.full((len(scenes), CELLS), IGNORED), cells_by_tile()
    for index, shown in enumerate(scenes):
        for rank, thing in enumerate(in_quarters(shown)):
            ranks[index, order.index(thing.cell)] = rank
    rank_told = told(states[RANK], "rank", len(COUNTS)).flatten(0, 1)
    return CELL_WEIGHT * (place + F.cross_entropy(rank_told, ranks.flatten(), ignore_index=IGNORED))


def word_numbers(tokenizer: Tokenizer) -> Tensor:
    """Return for each token the number of its colour or kind, int64 [V], colours first; −1 where it names neither."""
    found = torch.full((tokenizer.get_vocab_size(),), -1)
    for number, word in enumerate((*COLOURS, *KINDS)):
        for form in (word, PLURALS.get(word, f"{word}s")) if word not in DIGITS else (word,):
            found[tokenizer.encode(f" {form}").ids[-1]] = number
    return found


def cells_of_words(scenes: Sequence[Scene]) -> Tensor:
    """Return the cells that have each colour and each kind: [B, words, cells], 1 where a cell has it."""
    found = torch.zeros(len(scenes), len(COLOURS) + len(KINDS), CELLS)
    for index, shown in enumerate(scenes):
        for thing in shown.things:
            found[index, list(COLOURS).index(thing.colour), thing.cell] = 1
            found[index, len(COLOURS) + KINDS.index(thing.kind), thing.cell] = 1
    return found


def loss_of_words(states: Sequence[Tensor], numbers: Tensor, scenes: Sequence[Scene]) -> Tensor:
    """Return the loss of what words tell: states behind each block [B, Q, S, E], and `word_numbers` [B, Q, S]."""
    picture, *_ = places = (numbers >= 0).nonzero(as_tuple=True)
    cells = cells_of_words(scenes)[picture, numbers[places]]
    logits = told(states[WORD][places], "word", CELLS) - 2
    return WORD_WEIGHT * F.binary_cross_entropy_with_logits(logits, cells, reduction="none").sum(-1).mean()


def loss_of_pointers(states: Sequence[Tensor], pointers: Pointers) -> Tensor:
    """Return the loss of what states of questions tell behind each block: [B, Q, S, E]."""
    found = torch.tensor(0.0)
    for block, name, cells, tokens in (
        (MEANT, "meant", pointers.meant, pointers.asks),
        (TOLD, "told", pointers.told, pointers.tells),
    ):
        logits = told(states[block][tokens], name, CELLS) - 2
        each = F.binary_cross_entropy_with_logits(logits, cells[tokens], reduction="none")
        found = found + POINTER_WEIGHT * each.sum(-1).mean()
    return found
