"""Pictures in a prompt: numbers that stand for their states, and the embeddings that a graph reads in their place.

    prompt       …  31  [2⁶¹ + …] [2⁶⁰ + …] …  32  …       numbers beyond the vocabulary, drawn from the picture's hash
    embeddings   …  e   feature    feature  …  e   …       of tokens by the graph `embed_tokens`, and of the picture

A prompt's numbers are what prefixes are found again by, so that another picture is another prefix. They reach no graph:
pieces of a prompt that have some run over the graph that reads embeddings, and all others over the decode graph.

Where positions have axes, every token up to the last picture has such a number (`PlacedTokens`). These run at
positions that are shifted as a whole, so that the tokens behind them stand at their slots of the cache: attention sees
differences of positions alone, and the decode graph needs to know nothing of pictures. The numbers depend on the shift,
so that a prefix is found again where pictures of the same shift follow.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import POSITION_IDS
from edgeformer.runtime.media.pictures.positions import AXES, PictureSpan, positions_of, shift
from edgeformer.runtime.steps.picture_tower import Features, PromptPicture

NUMBER_BITS = 62
"""Bits of the number that stands for a state of a picture; with the vocabulary it is an int64."""


def picture_numbers(digest: bytes, count: int, vocab_size: int) -> NDArray[np.int64]:
    """Return the numbers of the states of a picture, int64 [count]; digest: of its pixels."""
    drawn = np.frombuffer(hashlib.shake_256(digest).digest(8 * count), "<u8") >> (64 - NUMBER_BITS)
    return drawn.astype(np.int64) + vocab_size


@dataclass(frozen=True)
class PlacedTokens:
    """The tokens of a prompt up to the end of its last picture, where positions have axes.

    Attributes:
        numbers: that stand for them, int64 [N], in ascending order.
        tokens: the tokens, and the numbers of states of pictures, int64 [N].
        slots: their places in the prompt, int64 [N].
        positions: of each, shifted, int64 [N, 3].
    """

    numbers: NDArray[np.int64]
    tokens: NDArray[np.int64]
    slots: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def of(cls, tokens: NDArray[np.int64], spans: Sequence[PictureSpan], vocab_size: int) -> "PlacedTokens":
        """Return the placed tokens of a prompt with numbers of states; spans: of its pictures, one at least."""
        end, by = spans[-1].end, shift(spans)
        # A number for each slot and shift, to which tokens are added: another prompt has it where it has both.
        drawn = picture_numbers(f"shifted by {by}".encode(), end, 0)
        numbers = ((drawn + tokens[:end]) & ((1 << NUMBER_BITS) - 1)) + vocab_size
        order = np.argsort(numbers, kind="stable")
        positions = positions_of(end, spans).T + by
        return cls(numbers[order], tokens[:end][order], order, positions[order])

    @property
    def prompt(self) -> NDArray[np.int64]:
        """The numbers in the order of the prompt."""
        found = np.empty_like(self.numbers)
        found[self.slots] = self.numbers
        return found

    def find(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where numbers are."""
        return np.searchsorted(self.numbers, numbers)


@dataclass(frozen=True)
class PictureGraphs:
    """The sessions that read embeddings.

    Attributes:
        embed: of the graph that makes embeddings of tokens.
        decoder: of the decode graph that reads embeddings.
        token: the placeholder, whose embedding is replaced.
        vocab_size: smallest number of a picture.
    """

    embed: Any
    decoder: Any
    token: int
    vocab_size: int


class PictureRows:
    """The pictures of a prompt, by the numbers that stand for their states.

    Attributes:
        graphs: what reads the states.
        pictures: in the order of the prompt.
        placed: the tokens up to the last picture, where positions have axes; None where they have none.
    """

    def __init__(self, graphs: PictureGraphs, pictures: Sequence[PromptPicture], placed: PlacedTokens | None = None):
        self.graphs = graphs
        self.pictures = pictures
        self.placed = placed
        numbers = np.concatenate([each.numbers for each in pictures])
        order = np.argsort(numbers, kind="stable")
        self._numbers, self._order = numbers[order], order
        self._starts = np.cumsum([0, *(len(each.numbers) for each in pictures[:-1])])

    def read(self, tokens: Sequence[int] | NDArray[np.int64]) -> bool:
        """Return whether any of these tokens is a number: of a picture, or of a token that is placed before one."""
        return bool((np.asarray(tokens, np.int64) >= self.graphs.vocab_size).any())

    def read_next(self, tokens: Sequence[int]) -> bool:
        """Let the tower read the next tiles of the first picture among tokens that it has not read.

        Returns False where it has read them all, and nothing was run.
        """
        ids = self._plain(np.asarray(tokens, np.int64))
        found = np.unique(self._places(ids[ids >= self.graphs.vocab_size])[0])
        return any(self.pictures[each].read_next() for each in found)

    def inputs(self, tokens: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return what the graph reads of a piece of a prompt that has a number, beside the mask and the cache.

        inputs_embeds: the embeddings of tokens and numbers, float32 [1, S, E], first. position_ids: int64 [3, 1, S],
        where positions have axes.
        """
        inputs: dict[str, NDArray[Any]] = {"inputs_embeds": self._embeddings(self._plain(tokens))}
        if self.placed is not None:
            numbered = tokens >= self.graphs.vocab_size
            found = self.placed.find(tokens[numbered])
            # All tokens up to the last picture have numbers, so that a piece with some begins with one.
            positions = np.tile(self.placed.slots[found[0]] + np.arange(len(tokens)), (AXES, 1))
            positions[:, numbered] = self.placed.positions[found].T
            inputs[POSITION_IDS] = positions[:, None]
        return inputs

    def _plain(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return tokens, and numbers of states of pictures, without their places."""
        if self.placed is None:
            return tokens
        numbered, plain = tokens >= self.graphs.vocab_size, tokens.copy()
        plain[numbered] = self.placed.tokens[self.placed.find(tokens[numbered])]
        return plain

    def _embeddings(self, tokens: NDArray[np.int64]) -> Features:
        """Return the embeddings of tokens and numbers of states, float32 [1, S, E]."""
        seen = tokens >= self.graphs.vocab_size
        ids = np.where(seen, self.graphs.token, tokens)[None]
        [found] = self.graphs.embed.run(["inputs_embeds"], {"input_ids": ids})
        embeddings: Features = found
        pictures, states = self._places(tokens[seen])
        places = np.flatnonzero(seen)
        for each in np.unique(pictures):
            of_picture = pictures == each
            embeddings[0, places[of_picture]] = self.pictures[each].states[states[of_picture]]
        return embeddings

    def _places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the picture of each number, by index, and which of its states the number stands for."""
        place = self._order[np.searchsorted(self._numbers, numbers)]
        picture = np.searchsorted(self._starts, place, side="right") - 1
        return picture, place - self._starts[picture]
