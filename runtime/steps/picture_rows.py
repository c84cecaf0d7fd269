"""Pictures in a prompt: numbers that stand for their states, and the embeddings that a graph reads in their place.

    prompt       …  31  [2⁶¹ + …] [2⁶⁰ + …] …  32  …       numbers beyond the vocabulary, drawn from the picture's hash
    embeddings   …  e   feature    feature  …  e   …       of tokens by the graph `embed_tokens`, and of the picture

A prompt's numbers are what prefixes are found again by, so that another picture is another prefix. They reach no graph:
pieces of a prompt that have some run over the graph that reads embeddings, and all others over the decode graph.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.steps.picture_tower import Features, PromptPicture

NUMBER_BITS = 62
"""Bits of the number that stands for a state of a picture; with the vocabulary it is an int64."""


def picture_numbers(digest: bytes, count: int, vocab_size: int) -> NDArray[np.int64]:
    """Return the numbers of the states of a picture, int64 [count]; digest: of its pixels.

    From `vocab_size` on, the first is odd, and the others are even; see `picture_blocks`.
    """
    drawn = np.frombuffer(hashlib.shake_256(digest).digest(8 * count), "<u8") >> (65 - NUMBER_BITS)
    return 2 * drawn.astype(np.int64) + (np.arange(count) == 0) + vocab_size


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
    """

    def __init__(self, graphs: PictureGraphs, pictures: Sequence[PromptPicture]):
        self.graphs = graphs
        self.pictures = pictures
        numbers = np.concatenate([each.numbers for each in pictures])
        order = np.argsort(numbers, kind="stable")
        self._numbers, self._order = numbers[order], order
        self._starts = np.cumsum([0, *(len(each.numbers) for each in pictures[:-1])])

    def read(self, tokens: Sequence[int] | NDArray[np.int64]) -> bool:
        """Return whether any of these tokens is a number of a picture."""
        return bool((np.asarray(tokens, np.int64) >= self.graphs.vocab_size).any())

    def read_next(self, tokens: Sequence[int]) -> bool:
        """Let the tower read the next tiles of the first picture among tokens that it has not read.

        Returns False where it has read them all, and nothing was run.
        """
        ids = np.asarray(tokens, np.int64)
        found = np.unique(self._places(ids[ids >= self.graphs.vocab_size])[0])
        return any(self.pictures[each].read_next() for each in found)

    def embeddings(self, tokens: NDArray[np.int64]) -> Features:
        """Return the embeddings of tokens and numbers, float32 [1, S, E]."""
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
