"""An int8 cache, held to PyTorch number by number.

Where a key lies halfway between two integers, float64 and a graph in float32 may round it to different ones, each with
reason, and what follows would differ by a step of the cache for no fault. So the graph chooses, and is judged twice:
each of its integers must be one that float64's own key or value may be rounded to; and its logits must be those that
PyTorch comes to over just these integers, as exactly as any graph's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor

from edgeformer.cache_scales import CacheScales
from edgeformer.contract import present_names
from edgeformer.export.bundle.ort_format import load_onnx
from edgeformer.export.parity import feeding
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.judge import Judge, Piece
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.reference.quantized_caches import CacheEntrance, Rotation, tensors
from edgeformer.export.reference.reference import CastWeights, Reference
from edgeformer.manifest import Manifest
from edgeformer.model_spec import ModelSpec

LENGTH = 48
PROMPTS = (40, 17, 1)
"""Tokens of each row of a batch, before single steps."""
STEPS = 4
SCALES = 12, 13
"""Places of k_scale and v_scale among the inputs of GroupQueryAttention."""

Array = NDArray[Any]


@dataclass(frozen=True)
class _Row:
    """What a graph made of a text: logits [n, V], and of each layer the integers of keys and values [n, K·D]."""

    run: str
    tokens: NDArray[np.int64]
    logits: Array
    caches: list[tuple[Array, Array]]


def judge_int8_cache(graph: Graph, model_spec: ModelSpec, weights: Mapping[str, Tensor]) -> list[Check]:
    """Run a prompt, steps, chunks and a batch; check the integers and the logits of each."""
    scales = graph.manifest.cache_scales
    assert scales is not None
    rows = _feed(graph)
    ids = _stacked([row.tokens for row in rows])
    caches = [
        tuple(_stacked([row.caches[layer][part] for row in rows]) for part in (0, 1))
        for layer in range(model_spec.cache.num_layers)
    ]
    stored = CastWeights(weights, torch.float32)
    (exact, expected), (eager, rounded) = (
        _run(model_spec, stored, dtype, torch.from_numpy(ids), _GivenCaches(caches, scales))
        for dtype in (torch.float64, torch.float32)
    )
    judge = Judge("fp32", eager_worst=worst_of(zip(rounded, expected, strict=True)))
    for run in dict.fromkeys(row.run for row in rows):
        pieces = (
            Piece(row.logits, rounded[place, : len(row.logits)], expected[place, : len(row.logits)])
            for place, row in enumerate(rows)
            if row.run == run
        )
        judge.logits(run, "over the integers that the graph cached", pieces)
    # Behind the end of a shorter row stand zeros that no graph made.
    there = _stacked([np.ones(len(row.logits), np.bool_) for row in rows])
    beyond = max(0.0, float(exact.distances(there).max()) - 0.5)
    eagers = float(np.abs(eager.numbers(there) - exact.numbers(there)).max())
    judge.check(
        "integers: beyond rounding", "from float64's keys and values, in steps over a half, at the worst number",
        "cache step", beyond, eagers,
    )  # fmt: skip
    judge.check(
        "scales: clipped", "part of a layer's keys or values that the scales leave no room for, at the worst layer",
        "clipped", exact.clipped(there), None,
    )  # fmt: skip
    return judge.checks


def _feed(graph: Graph) -> list[_Row]:
    """Run a prefill, single steps, chunks, and a batch of right-padded prompts with steps behind them."""
    length = min(LENGTH, graph.manifest.context_length)
    texts = [random_tokens(length, graph.manifest.vocab_size, salt=20 + index) for index in range(len(PROMPTS))]
    rows = []
    feeds = {"prefill": feeding.prefill, "steps": feeding.single_steps, "chunks": feeding.chunks}
    for (run, feed), tokens in zip(feeds.items(), texts, strict=True):
        logits, decoder = feed(graph, tokens)
        rows.append(_Row(run, tokens, logits, _flat(decoder.cache.read(length), 0, length)))
    lengths = [max(1, min(prompt, length - STEPS)) for prompt in PROMPTS]
    steps = min(STEPS, length - max(lengths))
    batch, decoder = feeding.ragged_batch(graph, texts, lengths, steps)
    caches = decoder.cache.read(max(lengths) + steps)
    return rows + [
        _Row("batch", texts[row][: len(logits)], logits, _flat(caches, row, len(logits)))
        for row, logits in enumerate(batch)
    ]


def _flat(caches: Sequence[tuple[Array, Array]], row: int, length: int) -> list[tuple[Array, Array]]:
    """[B, K, n, D] of each layer → of one row, [length, K·D]."""

    def flat(part: Array) -> Array:
        return part[row, :, :length].swapaxes(0, 1).reshape(length, -1)

    return [(flat(key), flat(value)) for key, value in caches]


def _stacked(rows: Sequence[Array]) -> Array:
    """Arrays [n, …] of several rows as one, with zeros behind the shorter ones: [B, S, …]."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, [(0, longest - len(row)), *[(0, 0)] * (row.ndim - 1)]) for row in rows])


class _GivenCaches(CacheEntrance):
    """Hands attention given integers, and notes what they stand for: keys and values in steps of their scales.

    there: in what it says of them, which of the positions [B, S] hold tokens.
    """

    def __init__(self, caches: list[tuple[Array, ...]], scales: CacheScales):
        super().__init__()
        self._caches = [tuple(map(torch.from_numpy, cache)) for cache in caches]
        self._scales = list(zip(tensors(scales.key), tensors(scales.value), strict=True))
        self._numbers: list[Tensor] = []

    def store(self, layer: int, key: Tensor, value: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Both, as the integers mean them."""
        pairs = list(zip((key, value), self._caches[layer], self._scales[layer], strict=True))
        self._numbers += [x / scales.to(x.dtype) for x, _, scales in pairs]
        given_key, given_value = (integers.to(x.dtype) * scales.to(x.dtype) for x, integers, scales in pairs)
        return given_key, given_value

    def numbers(self, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Keys and values in steps, clipped to int8's range: [layers · 2, tokens, K·D]."""
        return np.clip(self._all(there), -128, 127)

    def distances(self, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        """How far they are from the integers, in the same places."""
        given = np.stack([part.numpy() for cache in self._caches for part in cache])
        return np.abs(self.numbers(there) - given[:, there])

    def clipped(self, there: NDArray[np.bool_]) -> float:
        """The part of the keys or values of a layer that int8's range leaves out, at the worst layer."""
        return float((np.abs(self._all(there)) > 128).mean((1, 2)).max())

    def _all(self, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        return torch.stack(self._numbers).numpy().astype(np.float64)[:, there]


def _run(
    model_spec: ModelSpec, weights: Mapping[str, Tensor], dtype: torch.dtype, ids: Tensor, caches: _GivenCaches
) -> tuple[_GivenCaches, Array]:
    logits, _ = Reference(model_spec, weights, dtype, caches).run(ids)
    return caches, logits.numpy()


def judge_scales(folder: Path, manifest: Manifest) -> Check:
    """Every graph of a bundle must round by the scales of the manifest, for they share one cache."""
    scales = manifest.cache_scales
    assert scales is not None
    wanted = np.array([scales.key, scales.value], np.float32).swapaxes(0, 1)  # [layers, 2, K·D]
    differing = 0
    for name in manifest.all_graphs:
        graph = load_onnx(folder / name).graph
        constants = {tensor.name: tensor for tensor in graph.initializer}
        attention = {node.output[1]: node for node in graph.node if node.op_type == "GroupQueryAttention"}
        for key, layer in zip(present_names(manifest.cache)[::2], wanted, strict=True):
            for place, numbers in zip(SCALES, layer, strict=True):
                read = attention[key].input[place : place + 1] if key in attention else []
                stored = [numpy_helper.to_array(constants[each]).ravel() for each in read if each in constants]
                same = [int(np.sum(each == numbers)) for each in stored if each.shape == numbers.shape]
                differing += len(numbers) - sum(same)
    return Check(
        name="scales: differing numbers", what=f"of {', '.join(manifest.all_graphs)} from those of the manifest",
        value=float(differing), limit=0.0, eager=None,
        reason="the graphs read and write one cache, so its integers must mean the same to all of them",
    )  # fmt: skip
