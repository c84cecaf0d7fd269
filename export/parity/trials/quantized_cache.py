"""Check a quantized cache against PyTorch, number by number.

Where a key lies halfway between two integers, float64 and a graph in less precision may correctly round it to different
ones, and everything behind it would differ by a step of the cache. So PyTorch is given the integers that the graph
stored. Each must be one to which float64's own key or value may be rounded, and the graph's logits must be those of
PyTorch over the same integers, within the limits of any graph. In an fp8 cache numbers of float8e4m3fn take the places
of integers, and their steps grow with them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor

from edgeformer.contract.ops import ATTENTION, SCALES
from edgeformer.export.bundle.ort_format import load_onnx
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.graph.tensors import TORCH_PRECISIONS, to_numpy
from edgeformer.export.parity import feeding
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import vector_errors, worst_of
from edgeformer.export.parity.judge import Judge, Piece
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.reference.quantized_caches import CacheEntrance, Rotation, dequantized, tensors
from edgeformer.export.reference.reference import CastWeights, Reference
from edgeformer.manifest.cache_scales import LARGEST, CacheScales
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import QuantizedCache
from edgeformer.models.model_spec import ModelSpec

LENGTH = 48
"""Tokens of a text."""
PROMPTS = (40, 17, 1)
"""Tokens of each row's prompt in a batch."""
STEPS = 4
"""Single steps behind the prompts of a batch."""
NAMES: dict[QuantizedCache, str] = {"int8": "integers", "fp8": "floats"}
"""The numbers of a cache in the names of checks."""
BEYOND: dict[QuantizedCache, float] = {"int8": 128, "fp8": 464}
"""Numbers up to which rounding, and not the range, makes the largest number of a cache of them."""

Array = NDArray[Any]


@dataclass(frozen=True)
class _Row:
    """Outputs of a graph for a text: logits [n, V], and the numbers of each layer's cached keys and values [n, K·D].

    prompt: tokens of the first run, with nothing in the cache before it; 0 for a step, which attends over its whole
    buffer.
    """

    run: str
    tokens: NDArray[np.int64]
    logits: Array
    caches: list[tuple[Array, ...]]
    prompt: int


def judge_quantized_cache(
    graph: Graph, model_spec: ModelSpec, weights: Mapping[str, Tensor], exact_prompts: bool = False
) -> list[Check]:
    """Run a prompt, steps, chunks and a batch; check the numbers that are cached and the logits of each.

    weights: those that the graph holds. exact_prompts: whether a prompt over an empty cache attends to its keys and
    values before they are rounded, as CUDA's kernel does (its FlashAttentionAndQuantizeKV, onnxruntime 1.31).
    """
    scales, arithmetic = graph.manifest.cache_scales, graph.manifest.plan.arithmetic
    assert scales is not None
    rows = _feed(graph)
    ids = _stacked([row.tokens for row in rows])
    caches = [
        tuple(_stacked([row.caches[layer][part] for row in rows]) for part in (0, 1))
        for layer in range(model_spec.cache.num_layers)
    ]
    stored = CastWeights(weights, TORCH_PRECISIONS[arithmetic])
    prompts = torch.tensor([row.prompt if exact_prompts else 0 for row in rows])
    (exact, expected), (eager, rounded) = (
        _run(model_spec, stored, dtype, torch.from_numpy(ids), _GivenCaches(caches, scales, prompts))
        for dtype in (torch.float64, TORCH_PRECISIONS[arithmetic])
    )
    errors = [vector_errors(*pair) for pair in zip(rounded, expected, strict=True)]
    judge = Judge(arithmetic, eager_worst=worst_of(errors))
    for run in dict.fromkeys(row.run for row in rows):
        pieces = (
            Piece(row.logits, errors[place].part(slice(len(row.logits))), expected[place, : len(row.logits)])
            for place, row in enumerate(rows)
            if row.run == run
        )
        judge.logits(run, f"over the {NAMES[scales.precision]} that the graph cached", pieces)
    # The zeros behind the end of a shorter row are not the graph's.
    valid = _stacked([np.ones(len(row.logits), np.bool_) for row in rows])
    beyond = max(0.0, float(exact.distances(valid).max()) - 0.5)
    numbers = exact.numbers(valid)
    eager_error = float((np.abs(eager.numbers(valid) - numbers) / steps_at(numbers, scales.precision)).max())
    judge.check(
        f"{NAMES[scales.precision]}: beyond rounding",
        "largest distance of what is cached from float64's key or value, in steps beyond the half of rounding",
        "cache step", beyond, eager_error,
    )  # fmt: skip
    judge.check(
        "scales: clipped",
        f"fraction of a layer's keys or values that are out of {scales.precision}'s range, at the worst layer",
        "clipped", exact.clipped(valid), None,
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
        prompt = {"prefill": length, "steps": 0, "chunks": 1}[run]
        rows.append(_Row(run, tokens, logits, _flat(decoder.cache.read(length), 0, length), prompt))
    lengths = [max(1, min(prompt, length - STEPS)) for prompt in PROMPTS]
    steps = min(STEPS, length - max(lengths))
    batch, decoder = feeding.ragged_batch(graph, texts, lengths, steps)
    caches = decoder.cache.read(max(lengths) + steps)
    return rows + [
        _Row("batch", texts[row][: len(logits)], logits, _flat(caches, row, len(logits)), lengths[row])
        for row, logits in enumerate(batch)
    ]


def _flat(caches: Sequence[tuple[Array, ...]], row: int, length: int) -> list[tuple[Array, ...]]:
    """Return the keys and values of one row, [length, K·D] of each layer, from those of all rows [B, K, n, D]."""

    def flat(part: Array) -> Array:
        return part[row, :, :length].swapaxes(0, 1).reshape(length, -1)

    return [tuple(map(flat, parts)) for parts in caches]


def _stacked(rows: Sequence[Array]) -> Array:
    """Stack arrays [n, …] of several rows to [B, S, …], with zeros behind the shorter ones."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, [(0, longest - len(row)), *[(0, 0)] * (row.ndim - 1)]) for row in rows])


def steps_at(numbers: NDArray[np.float64], precision: QuantizedCache) -> NDArray[np.float64]:
    """Return the distance of neighbours in a cache at each number: 1 between integers, 1/8 of a float's power of two.

    float8e4m3fn has 3 bits of mantissa, and its steps shrink no further below 2⁻⁶.
    """
    if precision == "int8":
        return np.ones_like(numbers)
    _, exponents = np.frexp(numbers)
    return np.ldexp(1.0, np.maximum(exponents - 1, -6) - 3)


class _GivenCaches(CacheEntrance):
    """Gives attention what a graph cached, and records the keys and values that it stands for, divided by the scales.

    prompts: int64 [B], the first tokens of each row that attend to the module's own keys and values. valid: which of
    the positions [B, S] hold tokens.
    """

    def __init__(self, caches: list[tuple[Array, ...]], scales: CacheScales, prompts: Tensor):
        super().__init__()
        self._caches = [tuple(map(torch.from_numpy, cache)) for cache in caches]
        self._scales = list(zip(tensors(scales.key), tensors(scales.value), strict=True))
        self._precision = scales.precision
        self._prompts = prompts
        self._numbers: list[Tensor] = []

    def store(self, layer: int, key: Tensor, value: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the cache means; record those of the module, divided by their scales."""
        pairs = list(zip((key, value), self._caches[layer], self._scales[layer], strict=True))
        self._numbers += [x.double() / scales for x, _, scales in pairs]
        given_key, given_value = (dequantized(integers, scales, x.dtype) for x, integers, scales in pairs)
        return given_key, given_value

    def attend(self, attention: Callable[..., Any], key: Tensor, value: Tensor) -> Any:
        """Let prompts attend to keys and values as they are, and the tokens behind them to what is cached of all."""
        output, *presents = attention(key=key, value=value)
        if not self._prompts.any():
            return output, *presents
        in_prompt = torch.arange(output.shape[1]) < self._prompts[:, None]
        return torch.where(in_prompt[..., None], attention()[0], output), *presents

    def numbers(self, valid: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return keys and values over their scales, clipped to the range: [layers · 2, tokens, K·D]."""
        least = -128 if self._precision == "int8" else -LARGEST[self._precision]
        return np.clip(self._all(valid), least, LARGEST[self._precision])

    def distances(self, valid: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return their distances from what is cached, in steps of the cache, in the same shape."""
        given, numbers = np.stack([part.numpy() for cache in self._caches for part in cache]), self.numbers(valid)
        return np.abs(numbers - given[:, valid]) / steps_at(numbers, self._precision)

    def clipped(self, valid: NDArray[np.bool_]) -> float:
        """Return the fraction of a layer's keys or values that are out of the range, at the worst layer."""
        return float((np.abs(self._all(valid)) > BEYOND[self._precision]).mean((1, 2)).max())

    def _all(self, valid: NDArray[np.bool_]) -> NDArray[np.float64]:
        return torch.stack(self._numbers).numpy()[:, valid]


def _run(
    model_spec: ModelSpec, weights: Mapping[str, Tensor], dtype: torch.dtype, ids: Tensor, caches: _GivenCaches
) -> tuple[_GivenCaches, Array]:
    logits, _ = Reference(model_spec, weights, dtype, caches).run(ids)
    return caches, to_numpy(logits)


def judge_scales(folder: Path, manifest: Manifest) -> list[Check]:
    """Check that every graph of a bundle has the scales of the manifest, since all graphs share one cache.

    Nothing is checked in a twin of a graph with an fp8 cache, which has them elsewhere (fp8_twin.py); `verify_twin`
    does it in the graph itself.
    """
    scales = manifest.cache_scales
    assert scales is not None
    if scales.precision not in manifest.plan.runs_on.cache_precisions:
        return []
    wanted = np.array([scales.key, scales.value], np.float32).swapaxes(0, 1)  # [layers, 2, K·D or 1]
    differing = 0
    for name in manifest.graph_files:
        graph = inline_functions(load_onnx(folder / name)).graph
        constants = {tensor.name: tensor for tensor in graph.initializer}
        nodes = [node for node in graph.node if (node.domain, node.op_type) == ATTENTION.key]
        attention = {dict(zip(ATTENTION.outputs, node.output, strict=False))["present_key"]: node for node in nodes}
        keys = (tensor.present for tensor in manifest.cache.tensors() if tensor.name == "key")
        for key, layer in zip(keys, wanted, strict=True):
            for name, numbers in zip(SCALES, layer, strict=True):
                read = [ATTENTION.named(attention[key].input).get(name, "")] if key in attention else []
                stored = [numpy_helper.to_array(constants[each]).ravel() for each in read if each in constants]
                same = [int(np.sum(each == numbers)) for each in stored if each.shape == numbers.shape]
                differing += len(numbers) - sum(same)
    found = Check(
        name="scales: differing numbers", what=f"that differ from the manifest in {', '.join(manifest.graph_files)}",
        value=float(differing), limit=0.0, eager=None,
        reason="the graphs share one cache, so what it holds must mean the same to all of them",
    )  # fmt: skip
    return [found]
