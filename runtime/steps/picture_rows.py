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

Features = NDArray[np.float32]
NUMBER_BITS = 61
"""Bits that are drawn for the number of a state of a picture; with the vocabulary and one bit more it is an int64."""


def picture_numbers(digest: bytes, count: int, vocab_size: int) -> NDArray[np.int64]:
    """Return the numbers of the states of a picture, int64 [count]; digest: of its pixels.

    From `vocab_size` on, the first is odd, and the others are even; see `picture_blocks`.
    """
    drawn = np.frombuffer(hashlib.shake_256(digest).digest(8 * count), "<u8") >> (64 - NUMBER_BITS)
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
    """The states of the pictures of some prompts, by their numbers.

    Attributes:
        graphs: what reads them.
        numbers: int64 [N], in ascending order.
        states: of each number, float32 [N, E].
    """

    def __init__(self, graphs: PictureGraphs, numbers: NDArray[np.int64], states: Features):
        order = np.argsort(numbers, kind="stable")
        self.graphs, self.numbers, self.states = graphs, numbers[order], states[order]

    @classmethod
    def joined(cls, several: Sequence["PictureRows"]) -> "PictureRows":
        """Return the states of the pictures of several prompts."""
        numbers, states = ([getattr(each, name) for each in several] for name in ("numbers", "states"))
        return cls(several[0].graphs, np.concatenate(numbers), np.concatenate(states))

    def read(self, tokens: NDArray[np.int64]) -> bool:
        """Return whether any of these tokens is a number of a picture."""
        return bool((tokens >= self.graphs.vocab_size).any())

    def embeddings(self, tokens: NDArray[np.int64]) -> Features:
        """Return the embeddings of tokens and numbers, float32 [1, S, E]."""
        seen = tokens >= self.graphs.vocab_size
        ids = np.where(seen, self.graphs.token, tokens)[None]
        [found] = self.graphs.embed.run(["inputs_embeds"], {"input_ids": ids})
        embeddings: Features = found
        embeddings[0, seen] = self.states[np.searchsorted(self.numbers, tokens[seen])]
        return embeddings
