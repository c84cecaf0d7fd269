"""Pictures in a prompt: numbers that stand for their states, and the embeddings that a graph reads in their place.

    prompt       …  31  [2⁶¹ + …] [2⁶⁰ + …] …  32  …       numbers beyond the vocabulary, drawn from the picture's hash
    embeddings   …  e   feature    feature  …  e   …       of tokens by the graph `embed_tokens`, and of the picture

A prompt's numbers are what prefixes are found again by, so that another picture is another prefix. They reach no graph:
pieces of a prompt that have some run over the graph that reads embeddings, and all others over the decode graph.

Where positions have axes, every token up to the last picture has such a number (`PlacedTokens`). These run at
positions that are shifted as a whole, so that the tokens behind them stand at their slots of the cache: attention sees
differences alone, and the decode graph needs to know nothing of pictures. The numbers depend on the shift, so that a
prefix is found again where the same pictures follow.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import POSITION_IDS
from edgeformer.runtime.media.pictures.positions import AXES, PictureSpan, positions_of, shift

Features = NDArray[np.float32]
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
        numbers: that stand for them, int64 [N].
        ids: the tokens, int64 [N]; the placeholder for states of pictures.
        slots: their places in the prompt, int64 [N].
        positions: of each, shifted, int64 [N, 3].
    """

    numbers: NDArray[np.int64]
    ids: NDArray[np.int64]
    slots: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def of(
        cls, tokens: NDArray[np.int64], spans: Sequence[PictureSpan], digests: Sequence[bytes], vocab_size: int
    ) -> "PlacedTokens":
        """Return the placed tokens of a prompt; spans, digests: of its pictures, of which there is at least one."""
        end, by = spans[-1].end, shift(spans)
        mask, place = (1 << NUMBER_BITS) - 1, hashlib.sha256(f"shift {by}".encode()).digest()
        drawn = picture_numbers(place, end, 0)
        numbers = ((drawn + tokens[:end]) & mask) + vocab_size
        for span, digest in zip(spans, digests, strict=True):
            seen = hashlib.sha256(place + f"slot {span.start}".encode() + digest).digest()
            numbers[span.start : span.end] = picture_numbers(seen, span.end - span.start, vocab_size)
        positions = positions_of(end, spans).T + by
        return cls(numbers, tokens[:end], np.arange(end), np.ascontiguousarray(positions))

    @classmethod
    def joined(cls, several: Sequence["PlacedTokens"]) -> "PlacedTokens":
        """Return those of several prompts, in ascending order of their numbers."""
        parts = [[getattr(each, field.name) for each in several] for field in fields(cls)]
        arrays = [np.concatenate(part) for part in parts]
        order = np.argsort(arrays[0], kind="stable")
        return cls(*(array[order] for array in arrays))

    def find(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where numbers are, of tokens in ascending order of theirs."""
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
    """The states of the pictures of some prompts, by their numbers.

    Attributes:
        graphs: what reads them.
        numbers: int64 [N], in ascending order.
        states: of each number, float32 [N, E].
        placed: the tokens up to the last picture of each prompt, where positions have axes; None where they have none.
    """

    def __init__(
        self,
        graphs: PictureGraphs,
        numbers: NDArray[np.int64],
        states: Features,
        placed: PlacedTokens | None = None,
    ):
        order = np.argsort(numbers, kind="stable")
        self.graphs, self.numbers, self.states = graphs, numbers[order], states[order]
        self.placed = None if placed is None else PlacedTokens.joined([placed])

    @classmethod
    def joined(cls, several: Sequence["PictureRows"]) -> "PictureRows":
        """Return the states of the pictures of several prompts."""
        numbers, states = ([getattr(each, name) for each in several] for name in ("numbers", "states"))
        placed = [each.placed for each in several if each.placed is not None]
        tokens = PlacedTokens.joined(placed) if placed else None
        return cls(several[0].graphs, np.concatenate(numbers), np.concatenate(states), tokens)

    def read(self, tokens: NDArray[np.int64]) -> bool:
        """Return whether any of these tokens is a number of a picture."""
        return bool((tokens >= self.graphs.vocab_size).any())

    def inputs(self, tokens: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return what the graph reads of a piece of a prompt that has a number, beside the mask and the cache.

        inputs_embeds: the embeddings of tokens and numbers, float32 [1, S, E], first. position_ids: int64 [3, 1, S],
        where positions have axes.
        """
        numbered = tokens >= self.graphs.vocab_size
        if self.placed is None:
            ids = np.where(numbered, self.graphs.token, tokens)
            return {"inputs_embeds": self._embeddings(ids, numbered, tokens)}
        found, ids = self.placed.find(tokens[numbered]), tokens.copy()
        ids[numbered] = self.placed.ids[found]
        # All tokens up to the last picture have numbers, so that a piece with some begins with one.
        positions = np.tile(self.placed.slots[found[0]] + np.arange(len(tokens)), (AXES, 1))
        positions[:, numbered] = self.placed.positions[found].T
        seen = numbered & (ids == self.graphs.token)
        return {"inputs_embeds": self._embeddings(ids, seen, tokens), POSITION_IDS: positions[:, None]}

    def _embeddings(self, ids: NDArray[np.int64], seen: NDArray[np.bool_], tokens: NDArray[np.int64]) -> Features:
        [found] = self.graphs.embed.run(["inputs_embeds"], {"input_ids": ids[None]})
        embeddings: Features = found
        embeddings[0, seen] = self.states[np.searchsorted(self.numbers, tokens[seen])]
        return embeddings
