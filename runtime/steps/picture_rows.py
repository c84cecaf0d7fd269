"""Pictures in a prompt: numbers that stand for their states, and the embeddings that a graph reads in their place.

    prompt       …  31  [2⁶¹ + …] [2⁶⁰ + …] …  32  …       numbers beyond the vocabulary, drawn from the picture's hash
    embeddings   …  e   feature    feature  …  e   …       of tokens by the graph `embed_tokens`, and of the picture

A prompt's numbers are what prefixes are found again by, so that another picture is another prefix. They reach no graph:
pieces of a prompt that have some run over the graph that reads embeddings, and all others over the decode graph. Where
a whole prompt attends both ways, a number stands for each of its tokens.

Where positions have axes, a number stands for each token up to the last picture. These run at positions that are
shifted as a whole, so that the tokens behind them stand at their slots of the cache: attention sees differences of
positions alone, and the decode graph needs to know nothing of pictures. The numbers depend on the shift, so that a
prefix is found again where pictures of the same shift follow.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import POSITION_IDS
from edgeformer.runtime.caches.encoder_outputs import pad_right
from edgeformer.runtime.media.pictures.positions import AXES, PictureSpan, positions_of, shift
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
        reader: of the graph that reads embeddings: a decode graph, or an encoder.
        token: the placeholder, whose embedding is replaced.
        vocab_size: smallest number of a picture.
    """

    embed: Any
    reader: Any
    token: int
    vocab_size: int


class PictureRows:
    """The pictures of a prompt, and the numbers that stand for their states, or for all of its tokens.

    Attributes:
        graphs: what reads the states.
        pictures: in the order of the prompt.
        tokens: int64 [S], the prompt with numbers.
    """

    def __init__(
        self,
        graphs: PictureGraphs,
        shown: NDArray[np.int64],
        pictures: Sequence[PromptPicture],
        *,
        whole: bool = False,
        spans: Sequence[PictureSpan] = (),
    ):
        """shown: the prompt with the placeholder for each state. whole: whether all of it attends both ways. spans:
        where the pictures stand, where positions have axes.

        What a layer keeps of a token depends on every other one then, so that the numbers follow from all of them: no
        other prompt begins alike.
        """
        self.graphs = graphs
        self.pictures = pictures
        digests, counts = [each.digest for each in pictures], [each.count for each in pictures]
        seen, size = shown == graphs.token, graphs.vocab_size
        if whole:
            self.tokens = picture_numbers(b"".join((*digests, shown.tobytes())), len(shown), size)
        else:
            self.tokens = shown.copy()
            drawn = [picture_numbers(digest, count, size) for digest, count in zip(digests, counts, strict=True)]
            self.tokens[seen] = np.concatenate([shown[:0], *drawn])
        placed = spans[-1].end if spans else 0
        if placed:
            # A number for each slot and shift, to which tokens are added: another prompt has it where it has both.
            of_slots = picture_numbers(f"shifted by {shift(spans)}".encode(), placed, 0)
            self.tokens[:placed] = ((of_slots + self.tokens[:placed]) & ((1 << NUMBER_BITS) - 1)) + size
        picture, state = np.full((2, len(shown)), -1)
        picture[seen] = np.repeat(np.arange(len(counts)), counts)
        state[seen] = np.concatenate([shown[:0], *map(np.arange, counts)])
        places = np.flatnonzero(self.tokens >= size)
        places = places[np.argsort(self.tokens[places], kind="stable")]
        self._numbers = self.tokens[places]
        self._ids, self._pictures, self._states = shown[places], picture[places], state[places]
        self._slots = places
        self._positions = (positions_of(placed, spans) + shift(spans))[:, places] if placed else None

    def read(self, tokens: Sequence[int] | NDArray[np.int64]) -> bool:
        """Return whether any of these tokens is a number."""
        return bool((np.asarray(tokens, np.int64) >= self.graphs.vocab_size).any())

    def read_next(self, tokens: Sequence[int]) -> bool:
        """Let the tower read the next tiles of the first picture among tokens that it has not read.

        Returns False where it has read them all, and nothing was run.
        """
        ids = np.asarray(tokens, np.int64)
        found = np.unique(self._pictures[self._find(ids[ids >= self.graphs.vocab_size])])
        return any(self.pictures[each].read_next() for each in found if each >= 0)

    def inputs(self, tokens: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return what the graph reads of a piece of a prompt that has a number, beside the mask and the cache.

        inputs_embeds: float32 [1, S, E], first. position_ids: int64 [3, 1, S], where positions have axes.
        """
        inputs: dict[str, NDArray[Any]] = {"inputs_embeds": self.embeddings(tokens)}
        if self._positions is not None:
            numbered = tokens >= self.graphs.vocab_size
            found = self._find(tokens[numbered])
            # All tokens up to the last picture have numbers, so that a piece with some begins with one.
            positions = np.tile(self._slots[found[0]] + np.arange(len(tokens)), (AXES, 1))
            positions[:, numbered] = self._positions[:, found]
            inputs[POSITION_IDS] = positions[:, None]
        return inputs

    def embeddings(self, tokens: NDArray[np.int64]) -> Features:
        """Return the embeddings of tokens and numbers, float32 [1, S, E]."""
        numbered = np.flatnonzero(tokens >= self.graphs.vocab_size)
        found, ids = self._find(tokens[numbered]), tokens.copy()
        ids[numbered] = self._ids[found]
        embeddings: Features = self.graphs.embed.run(["inputs_embeds"], {"input_ids": ids[None]})[0]
        pictures, states = self._pictures[found], self._states[found]
        for each in np.unique(pictures[pictures >= 0]):
            of_picture = pictures == each
            found_states = self.pictures[each].states[states[of_picture]]
            embeddings[0][numbered[of_picture], : found_states.shape[1]] = found_states
        return embeddings

    def _find(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where numbers are among those of the prompt in ascending order."""
        return np.searchsorted(self._numbers, numbers)


def placed_embeddings(
    graphs: PictureGraphs, texts: Sequence[NDArray[np.int64]], states: Sequence[Sequence[Features]], padding: int
) -> tuple[Features, NDArray[np.int64]]:
    """Return the embeddings of texts for an encoder, float32 [B, S, E], padded on the right, and their mask.

    texts: token ids, with the placeholder for each state.

    states: of the pictures of each text, in its order. padding: the token that fills rows.
    """
    ids, mask = pad_right([text.tolist() for text in texts], padding)
    embeddings: Features = graphs.embed.run(["inputs_embeds"], {"input_ids": ids})[0]
    for row, seen, found in zip(embeddings, (ids == graphs.token) & (mask == 1), states, strict=True):
        if found:
            row[seen] = np.concatenate(found)
    return embeddings, mask
