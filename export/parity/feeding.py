"""Ways to feed a graph. Each is a way that clients use; each returns logits of positions whose float64 value is known.

Every run over a static cache starts from one that is full of NaN, or of the worst that the graph bears, so that reading
one element too many shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest import Manifest, Provider
from edgeformer.runtime.decoder import (
    Decoder,
    DynamicDecoder,
    PrefillSession,
    StaticDecoder,
    needs_numbers,
    new_decoder,
)
from edgeformer.runtime.encoder_outputs import EncoderOutputs

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]

Side = Literal["right", "left"]

SPARE = 7
"""Slots of the cache that no token ever takes, as far as the context leaves any."""

LARGE = 1e4
"""Larger than any key or value, and a number of float16."""

Cache = tuple[NDArray[Any], NDArray[Any]]
"""Keys and values of a layer [B, K, n, D]."""


@dataclass(frozen=True)
class Graph:
    """An open graph of a decoder and what is needed to feed it.

    sources: what its rows read, of an encoder-decoder. view: another graph for prompts.
    """

    session: Any
    manifest: Manifest
    provider: Provider
    sources: EncoderOutputs | None = None
    view: PrefillSession | None = None

    @property
    def fillings(self) -> tuple[float, ...]:
        """What a static cache may hold where no token is, the worst first; a growing one has no such place."""
        if self.manifest.cache_form == "dynamic":
            return ()
        if self.manifest.cache_scales is not None:
            return (127.0, 0.0)
        return (LARGE, 0.0, -LARGE) if needs_numbers(self.manifest) else (float("nan"), 0.0)

    def read(self, decoder: Decoder, length: int) -> list[Cache]:
        """What the caches of a decoder mean, of the first `length` tokens: keys and values of each layer."""
        caches = decoder.cache.read(length)
        if self.manifest.cache_scales is None:
            return caches
        pairs = zip(caches, self.scales, strict=True)
        return [(key * scales[0], value * scales[1]) for (key, value), scales in pairs]

    def stored(self, layer: int, cache: Cache) -> Cache:
        """Keys and values as the cache of a layer holds them; an int8 cache must be able to."""
        if self.manifest.cache_scales is None:
            return cache
        key, value = (
            np.rint(part / scales).astype(np.int8) for part, scales in zip(cache, self.scales[layer], strict=True)
        )
        return key, value

    @cached_property
    def scales(self) -> list[Cache]:
        """Of an int8 cache: scales of each layer's keys and values, float32 [K, 1, D]."""
        scales, geometry = self.manifest.cache_scales, self.manifest.cache
        assert scales is not None
        shape = geometry.num_kv_heads, 1, geometry.head_dim
        pairs = zip(scales.key, scales.value, strict=True)
        return [(np.array(key, "f").reshape(shape), np.array(value, "f").reshape(shape)) for key, value in pairs]

    @property
    def sides(self) -> tuple[Side, ...]:
        """Where the prompts of a batch may be padded."""
        return ("right", "left") if self.manifest.cache_form == "dynamic" else ("right",)

    def decoder(self, rows: int, tokens: int, filling: float | None = None) -> Decoder:
        """A fresh cache of `rows` × `tokens` (and some to spare); a static one is filled, with the worst by default."""
        # onnxruntime refuses a buffer that is longer than the table of positions, however few tokens it holds.
        capacity = max(tokens, min(tokens + SPARE, self.manifest.context_length))
        decoder = new_decoder(self.session, self.manifest, rows, capacity, self.provider, self.sources, self.view)
        if isinstance(decoder, StaticDecoder):
            decoder.cache.fill(self.fillings[0] if filling is None else filling)
        return decoder


def prefill(graph: Graph, tokens: Tokens, filling: float | None = None) -> tuple[Logits, Decoder]:
    """The whole text in one run: logits [n, V], and the decoder with its cache."""
    decoder = graph.decoder(1, len(tokens), filling)
    return decoder.prefill_all(0, tokens, chunk=len(tokens)), decoder


def single_steps(graph: Graph, tokens: Tokens) -> tuple[Logits, Decoder]:
    """The text token by token from an empty cache: logits [n, V], and the decoder with its cache."""
    decoder = graph.decoder(1, len(tokens))
    return np.concatenate([decoder.decode_one_token([token]).copy() for token in tokens]), decoder


def chunks(graph: Graph, tokens: Tokens) -> tuple[Logits, Decoder]:
    """The text in chunks of 1, 2, 3, 5, 8… tokens: logits [n, V], and the decoder with its cache."""
    decoder = graph.decoder(1, len(tokens))
    pieces, start, sizes = [], 0, (1, 2)
    while start < len(tokens):
        pieces.append(decoder.prefill_all(0, tokens[start : start + sizes[0]], chunk=sizes[0]))
        start, sizes = start + sizes[0], (sizes[1], sum(sizes))
    return np.concatenate(pieces), decoder


def greedy(graph: Graph, prompt: Tokens, steps: int) -> tuple[Tokens, Logits]:
    """A free-running greedy text: prompt and new tokens [p + steps], and the logits that chose each new one."""
    decoder = graph.decoder(1, len(prompt) + steps)
    logits = [decoder.prefill(0, prompt).copy()]
    tokens = [*prompt, int(logits[0].argmax())]
    while len(logits) < steps:
        logits.append(decoder.decode_one_token(tokens[-1:])[0].copy())
        tokens.append(int(logits[-1].argmax()))
    return np.array(tokens, np.int64), np.stack(logits)


def ragged_batch(
    graph: Graph, rows: Sequence[Tokens], lengths: Sequence[int], steps: int, side: Side = "right"
) -> list[Logits]:
    """Prompts of `lengths` in one run, padded on one side, then `steps` single steps of all.

    Returns the logits of each row, in order, without its padding.
    """
    decoder = graph.decoder(len(rows), max(lengths) + steps)
    slots = np.arange(max(lengths))
    ends = np.array(lengths)[:, None]
    mask = slots < ends if side == "right" else slots >= len(slots) - ends
    padded = np.zeros(mask.shape, np.int64)
    for row, tokens in enumerate(rows):
        padded[row, mask[row]] = tokens[: lengths[row]]
    if side == "right":
        first = decoder.prefill_batch(padded, lengths)
    else:
        assert isinstance(decoder, DynamicDecoder)
        first = decoder.prefill_padded(padded, mask)
    logits = [[first[row, mask[row]]] for row in range(len(rows))]
    for step in range(steps):
        tokens_of_step = [tokens[length + step] for tokens, length in zip(rows, lengths, strict=True)]
        for row, new in enumerate(decoder.decode_one_token(tokens_of_step)):
            logits[row].append(new[None].copy())
    return [np.concatenate(pieces) for pieces in logits]


def behind_padding(graph: Graph, tokens: Tokens, padding: int) -> Logits:
    """The whole text in one run, behind slots of padding that hold a token: logits [n, V]."""
    decoder = graph.decoder(1, SPARE + len(tokens))
    assert isinstance(decoder, DynamicDecoder)
    ids = np.concatenate([np.full(SPARE, padding), tokens])
    return decoder.prefill_padded(ids[None], np.arange(len(ids))[None] >= SPARE)[0, SPARE:]


def rows_apart(graph: Graph, rows: Sequence[Tokens], lengths: Sequence[int], steps: int) -> list[Logits]:
    """Prompts of `lengths`, each in its own run, then `steps` single steps of all: logits of each row, in order."""
    decoder = graph.decoder(len(rows), max(lengths) + steps)
    prompts = zip(rows, lengths, strict=True)
    logits = [[decoder.prefill_all(row, tokens[:length])] for row, (tokens, length) in enumerate(prompts)]
    for step in range(steps):
        tokens_of_step = [tokens[length + step] for tokens, length in zip(rows, lengths, strict=True)]
        for row, new in enumerate(decoder.decode_one_token(tokens_of_step)):
            logits[row].append(new[None].copy())
    return [np.concatenate(pieces) for pieces in logits]


def after_past(graph: Graph, tokens: Tokens, length: int, past: Callable[[int], Cache], chunk: int = 0) -> Logits:
    """A chunk, then single steps behind a past of `length` tokens, keys and values [1, K, length, D] by layer.

    Returns logits [n, V].
    """
    decoder = graph.decoder(1, length + len(tokens))
    decoder.cache.write(length, lambda layer: graph.stored(layer, past(layer)))
    decoder.lengths[:] = length
    pieces = [decoder.prefill_all(0, tokens[:chunk], chunk=chunk)] if chunk else []
    return np.concatenate([*pieces, *(decoder.decode_one_token([token]).copy() for token in tokens[chunk:])])
