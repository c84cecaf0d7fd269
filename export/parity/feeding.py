"""Feed a decoder graph in the ways that clients do: in one run, token by token, in chunks, and in padded batches.

Every run over a static cache starts from a cache full of NaN, or of large numbers where the graph cannot take NaN, so
that a graph which reads one slot too many gives visibly wrong logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import SCALE_BYTES
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions.narrow_floats import FLOAT8, stored
from edgeformer.runtime.sessions.session import check_tensors
from edgeformer.runtime.steps.decode_graph import returns_last_logits
from edgeformer.runtime.steps.new_decoder import needs_numbers, new_decoder
from edgeformer.runtime.steps.picture_rows import PictureRows
from edgeformer.runtime.steps.runner import StepRunner

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]

Side = Literal["right", "left"]

SPARE = 7
"""Slots of a static cache behind the last token, and tokens of padding in front of a text."""

LARGE = 1e4
"""A number that float16 can hold and that is larger than any key or value."""

Cache = tuple[NDArray[Any], ...]
"""Tensors that a layer keeps between runs, such as keys and values [B, K, n, D]."""


@dataclass(frozen=True)
class Graph:
    """An open decoder graph and what is needed to feed it.

    encoder_outputs: what the rows of an encoder-decoder read. request_lengths: the most tokens that the rows will have,
    where rotary embeddings depend on it; none for the context length. pictures: those of the text that is fed.
    """

    session: Any
    manifest: Manifest
    provider: Provider
    encoder_outputs: EncoderOutputs | None = None
    request_lengths: tuple[int, ...] = ()
    pictures: PictureRows | None = None

    @property
    def fillings(self) -> tuple[float, ...]:
        """Numbers that the unused slots of a static cache may hold, the worst first; none for a dynamic cache."""
        if self.manifest.plan.cache_form == "dynamic":
            return ()
        scales = self.manifest.cache_scales
        if self.manifest.has_scales_per_token or (scales is not None and scales.precision == "int8"):
            return (127.0, 0.0)
        return (LARGE, 0.0, -LARGE) if needs_numbers(self.manifest) else (float("nan"), 0.0)

    def read(self, decoder: StepRunner, length: int) -> list[Cache]:
        """Return what each layer keeps of the first `length` tokens, dequantized if the cache is quantized."""
        caches = decoder.cache.read(length)
        if self.manifest.has_scales_per_token:
            return [tuple(map(_dequantized_per_token, cache)) for cache in caches]
        if self.manifest.cache_scales is None:
            return caches
        pairs = zip(caches, self.scales, strict=True)
        return [tuple(map(np.multiply, cache, scales)) for cache, scales in pairs]

    def stored(self, layer: int, cache: Cache) -> Cache:
        """Return keys and values as the cache of a layer stores them; a quantized one must represent them exactly."""
        half = self.manifest.plan.half_cache
        if half or self.manifest.has_scales_per_token:
            tensors = [tensor for tensor in self.manifest.cache.tensors() if tensor.layer == layer]
            pairs = zip(tensors, cache, strict=True)
            store = _half if half else _quantized_per_token
            return tuple(store(part) if tensor.per_token else part for tensor, part in pairs)
        if self.manifest.cache_scales is None:
            return cache
        numbers = [part / scales for part, scales in zip(cache, self.scales[layer], strict=True)]
        if self.manifest.cache_scales.precision == "int8":
            return tuple(np.rint(each).astype(np.int8) for each in numbers)
        return tuple(stored(each, FLOAT8) for each in numbers)

    @cached_property
    def scales(self) -> list[Cache]:
        """Return the scales of a quantized cache: float32 [K, 1, D] or [1, 1, 1] of each layer's keys and values."""
        scales, kept = self.manifest.cache_scales, self.manifest.cache.key_value
        assert scales is not None and kept is not None
        shape = (kept.num_kv_heads, 1, kept.head_dim) if scales.is_per_channel else (1, 1, 1)
        pairs = zip(scales.key, scales.value, strict=True)
        return [(np.array(key, "f").reshape(shape), np.array(value, "f").reshape(shape)) for key, value in pairs]

    @property
    def has_optional_logits(self) -> bool:
        """Whether a run of the graph can return the logits of its last token alone."""
        return returns_last_logits(self.session)

    @property
    def padding_sides(self) -> tuple[Side, ...]:
        """The sides on which the prompts of a batch may be padded."""
        return ("right", "left") if self.manifest.plan.cache_form == "dynamic" else ("right",)

    def decoder(self, rows: int, tokens: int, filling: float | None = None) -> StepRunner:
        """Return a decoder with a fresh cache for `rows` × `tokens`, and SPARE slots more if the context allows it.

        filling: the number in every slot of a static cache, by default the first of `fillings`. Raises BundleError for
        a graph that lacks what a layer keeps.
        """
        if self.encoder_outputs is None:  # the first decoder graph of an encoder-decoder reads no past
            kept = (tensor.past for tensor in self.manifest.cache.tensors())
            check_tensors(self.session, self.manifest.step_graphs[-1], kept, ())
        # onnxruntime refuses a buffer that is longer than the position tables, however few tokens it holds.
        capacity = max(tokens, min(tokens + SPARE, self.manifest.context_length))
        decoder = new_decoder(self.session, self.manifest, rows, capacity, self.provider, self.encoder_outputs)
        decoder.graph.pictures = self.pictures
        decoder.expect(self.manifest.context_length)
        for row, length in enumerate(self.request_lengths):
            decoder.expect(length, row)
        if isinstance(decoder.cache, StaticCache):
            decoder.cache.fill(self.fillings[0] if filling is None else filling)
        return decoder


def _dequantized_per_token(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the floats [..., D] that keys or values of int8 [..., D + 4] stand for; states that are floats, as is."""
    if rows.dtype != np.int8:
        return rows
    with np.errstate(over="ignore"):  # slots without a token have what they were filled with
        return rows[..., :-SCALE_BYTES] * np.ascontiguousarray(rows[..., -SCALE_BYTES:]).view(np.float32)


def _half(floats: NDArray[Any]) -> NDArray[np.float16]:
    return floats.astype(np.float16)


def _quantized_per_token(floats: NDArray[Any]) -> NDArray[np.int8]:
    """Return int8 [..., D + 4] that stand for floats [..., D]."""
    scales = (np.abs(floats).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    integers = np.rint(np.divide(floats, scales, out=np.zeros_like(floats), where=scales > 0)).astype(np.int8)
    return np.concatenate([integers, scales.view(np.int8)], axis=-1)


def prefill(graph: Graph, tokens: Tokens, filling: float | None = None) -> tuple[Logits, StepRunner]:
    """Run a whole text at once; return its logits [n, V], and the decoder with its cache."""
    decoder = graph.decoder(1, len(tokens), filling)
    return decoder.prefill_all(0, tokens, chunk=len(tokens)), decoder


def single_steps(graph: Graph, tokens: Tokens) -> tuple[Logits, StepRunner]:
    """Run a text token by token from an empty cache; return its logits [n, V], and the decoder with its cache."""
    decoder = graph.decoder(1, len(tokens))
    return np.concatenate([decoder.decode_one_token([token]).copy() for token in tokens]), decoder


def chunks(graph: Graph, tokens: Tokens) -> tuple[Logits, StepRunner]:
    """Run a text in chunks of 1, 2, 3, 5, 8… tokens; return its logits [n, V], and the decoder with its cache."""
    decoder = graph.decoder(1, len(tokens))
    pieces, start, sizes = [], 0, (1, 2)
    while start < len(tokens):
        pieces.append(decoder.prefill_all(0, tokens[start : start + sizes[0]], chunk=sizes[0]))
        start, sizes = start + sizes[0], (sizes[1], sum(sizes))
    return np.concatenate(pieces), decoder


def greedy(graph: Graph, prompt: Tokens, steps: int) -> tuple[Tokens, Logits]:
    """Generate greedily; return prompt and new tokens [p + steps], and the logits [steps, V] that chose the latter."""
    decoder = graph.decoder(1, len(prompt) + steps)
    logits = [decoder.prefill(0, prompt).copy()]
    tokens = [*prompt, int(logits[0].argmax())]
    while len(logits) < steps:
        logits.append(decoder.decode_one_token(tokens[-1:])[0].copy())
        tokens.append(int(logits[-1].argmax()))
    return np.array(tokens, np.int64), np.stack(logits)


def ragged_batch(
    graph: Graph, rows: Sequence[Tokens], lengths: Sequence[int], steps: int, side: Side = "right"
) -> tuple[list[Logits], StepRunner]:
    """Run prompts of `lengths` together, padded on one side, then `steps` single steps of all rows.

    Returns each row's logits [length + steps, V], and the decoder with its cache.
    """
    decoder = graph.decoder(len(rows), max(lengths) + steps)
    slots, ends = np.arange(max(lengths)), np.array(lengths)[:, None]
    mask = slots < ends if side == "right" else slots >= len(slots) - ends
    padded = np.zeros(mask.shape, np.int64)
    for row, tokens in enumerate(rows):
        padded[row, mask[row]] = tokens[: lengths[row]]
    if side == "right":
        first = decoder.prefill_batch(padded, lengths)
    else:
        first = decoder.prefill_padded(padded, mask)
    return _steps(decoder, rows, [first[row, mask[row]] for row in range(len(rows))], steps), decoder


def rows_apart(graph: Graph, rows: Sequence[Tokens], lengths: Sequence[int], steps: int) -> list[Logits]:
    """Run prompts of `lengths` one after the other, then `steps` single steps of all rows; return each row's logits."""
    decoder = graph.decoder(len(rows), max(lengths) + steps)
    prompts = zip(rows, lengths, strict=True)
    return _steps(
        decoder, rows, [decoder.prefill_all(row, text[:length]) for row, (text, length) in enumerate(prompts)], steps
    )


def _steps(decoder: StepRunner, rows: Sequence[Tokens], prompts: Sequence[Logits], steps: int) -> list[Logits]:
    """Run single steps of all rows behind prompts with these logits; return the logits of prompts and steps."""
    logits = [[prompt] for prompt in prompts]
    for step in range(steps):
        tokens = [row[len(prompt) + step] for row, prompt in zip(rows, prompts, strict=True)]
        for made, new in zip(logits, decoder.decode_one_token(tokens), strict=True):
            made.append(new[None].copy())
    return [np.concatenate(pieces) for pieces in logits]


def in_halves(graph: Graph, tokens: Tokens, guess: int) -> Logits:
    """Run a text in two halves; return the logits of the second [n, V].

    guess: this many other tokens are fed between the halves and taken back.
    """
    half = len(tokens) // 2
    decoder = graph.decoder(1, len(tokens))
    decoder.prefill_all(0, tokens[:half], chunk=half)
    snapshot = decoder.snapshot()
    for _ in range(min(guess, len(tokens) - half)):
        decoder.decode_one_token([0])
    decoder.restore(snapshot)
    return decoder.prefill_all(0, tokens[half:], chunk=len(tokens))


def behind_padding(graph: Graph, tokens: Tokens, padding: int) -> Logits:
    """Run a whole text at once behind SPARE slots of padding with the token `padding`; return its logits [n, V]."""
    decoder = graph.decoder(1, SPARE + len(tokens))
    ids = np.concatenate([np.full(SPARE, padding), tokens])
    return decoder.prefill_padded(ids[None], np.arange(len(ids))[None] >= SPARE)[0, SPARE:]


def after_past(graph: Graph, tokens: Tokens, length: int, past: Callable[[int], Cache], chunk: int = 0) -> Logits:
    """Run a chunk of tokens and then single steps behind a given past of `length` tokens; return the logits [n, V].

    past: returns what a layer keeps, such as keys and values [1, K, length, D].
    """
    decoder = graph.decoder(1, length + len(tokens))
    decoder.cache.write(length, lambda layer: graph.stored(layer, past(layer)))
    decoder.lengths[:] = length
    pieces = [decoder.prefill_all(0, tokens[:chunk], chunk=chunk)] if chunk else []
    return np.concatenate([*pieces, *(decoder.decode_one_token([token]).copy() for token in tokens[chunk:])])
