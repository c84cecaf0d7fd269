"""What every value inside a lowered graph should be, in float64: the measure that `locate` holds nodes against.

The canonical graph is evaluated node by node before any pass touches it: our ops by their torch maths
(`edgeformer/ops`), the rest by onnx's reference evaluator. Then the same graph is lowered afresh, and what only the
lowered form has (packed products, lengths, the insides of decomposed ops) is evaluated from those values.
So a pass or a lowering that goes wrong cannot bring its reference along: what it makes must meet the canonical values
again.

Weights are read one at a time, for all feeds together; beside them, memory holds activations of a dozen tokens (of a
whole recording, where that is what the graph takes).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from edgeformer.config import EncoderConfig
from edgeformer.export.capture.trace import OPSET, capture
from edgeformer.export.graph.canonical import DOMAIN, OPS
from edgeformer.export.graph.editing import streamed
from edgeformer.export.graph.tensors import TORCH_PRECISIONS, StreamedTensor
from edgeformer.export.lower import LoweringOptions, lower_captured
from edgeformer.export.quantize.quantized_tensor import quantized_once
from edgeformer.graph_specs import GraphSpec
from edgeformer.manifest import Arithmetic
from edgeformer.model_spec import ModelSpec
from edgeformer.runtime.session import CACHE_DTYPES

TOKENS = 12
SOURCE = 7
SEED = 0

Array = NDArray[Any]
Compute = Callable[[list[Array | None]], list[Array]]


@dataclass(frozen=True)
class Feed:
    """Inputs of a graph for one run.

    written: which of a row's tokens so far there are, [B, T]; of a decoder's cache, the slots that hold one afterwards.
    padding: which of the new tokens are none, [B, S].
    """

    name: str
    inputs: dict[str, Array]
    written: NDArray[np.bool_]
    padding: NDArray[np.bool_]


@dataclass(frozen=True)
class Expected:
    """What one value should be on one feed.

    value: float64, or the exact integers. marked: the same with NaN wherever padding or an unwritten slot of the cache
    decides. moved: by how much of its largest element it moves when the inputs of its node are rounded to the graph's
    precision; no kernel can be held to less.
    """

    value: Array
    marked: Array
    moved: float = 0.0

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Elements that mean something."""
        return ~np.isnan(self.marked) if self.marked.dtype.kind == "f" else np.ones(self.marked.shape, np.bool_)


class NodeValues:
    """Reference values of one graph of a model: of every node that a fresh lowering of it has, on every feed.

    fresh: that lowering, its weights left out (they are inputs). weights: its weights, which know how to read
    themselves. origins: who made each of its nodes. outputs: names of the graph's outputs.
    """

    def __init__(
        self,
        model_spec: ModelSpec,
        weights: Mapping[str, Tensor],
        precision: Arithmetic,
        lowering: LoweringOptions,
        spec: GraphSpec,
    ) -> None:
        graph = capture(spec, model_spec, weights, TORCH_PRECISIONS[precision])
        self.precision = np.dtype(CACHE_DTYPES[precision])
        self.feeds = make_feeds(spec, model_spec, self.precision, lowering)
        self._expected: dict[str, list[Expected]] = {
            name: [Expected(feed.inputs[name], feed.inputs[name]) for feed in self.feeds]
            for name in self.feeds[0].inputs
        }
        self._evaluate(graph)
        self.origins = lower_captured(graph, spec, lowering).origins
        self._evaluate(graph)
        self._place = {
            (node.name or "", index): output.name or ""
            for node in graph.graph
            for index, output in enumerate(node.outputs)
            if output.name in self._expected
        }
        self.outputs = [output.name or "" for output in graph.graph.outputs]
        self.weights: dict[str, StreamedTensor] = {}
        for name, value in list(graph.graph.initializers.items()):
            tensor = streamed(value)
            if tensor is not None:
                self.weights[name] = tensor
                del graph.graph.initializers[name]
                graph.graph.inputs.append(value)
        self.fresh = ir.serde.serialize_model(graph)

    def at(self, node: str, index: int, name: str) -> str | None:
        """The name, in a fresh lowering, of what output `index` of a node should be; None where that is not known.

        A graph output is known by its name, whatever node makes it; any other value by the node that makes it, because
        the names of values are numbered and shift when anything before them changes.
        """
        return name if name in self.outputs else self._place.get((node, index))

    def __getitem__(self, name: str) -> list[Expected]:
        """What a value should be, feed by feed."""
        return self._expected[name]

    def _evaluate(self, graph: ir.Model) -> None:
        """Evaluate every node that depends on the inputs and whose outputs are not known yet."""
        known = self._expected
        for node in graph.graph:
            names = [output.name or "" for output in node.outputs]
            unknown = [name for name in names if name and name not in known]
            if not unknown:
                continue
            inputs = [value.name if value is not None and value.name in known else None for value in node.inputs]
            if not any(inputs):
                continue  # weights alone: evaluated where they are read
            with quantized_once(value.const_value for value in node.inputs if value is not None):
                constants = [
                    None if name is not None or value is None else _constant(value)
                    for name, value in zip(inputs, node.inputs, strict=True)
                ]
            compute = _function(node)
            known |= {name: [] for name in unknown}
            for place, feed in enumerate(self.feeds):
                given = [None if name is None else known[name][place] for name in inputs]
                mark = _marking(node.op_type, compute, feed)
                for name, expected in zip(names, self._evaluate_node(compute, mark, given, constants), strict=True):
                    if name in unknown:
                        known[name].append(expected)

    def _evaluate_node(
        self, compute: Compute, mark: Compute, given: Sequence[Expected | None], constants: Sequence[Array | None]
    ) -> list[Expected]:
        """compute: what the node computes; mark: the same from and to marked values."""

        def run(function: Compute, pick: Callable[[Expected], Array]) -> list[Array]:
            chosen = zip(given, constants, strict=True)
            return function([constant if value is None else pick(value) for value, constant in chosen])

        with np.errstate(all="ignore"):  # padding may hold anything
            values = run(compute, lambda expected: expected.value)
            unmarked = mark is compute and all(each is None or each.marked is each.value for each in given)
            marked = values if unmarked else run(mark, lambda expected: expected.marked)
            rounded = run(compute, lambda expected: self._rounded(expected.value))
        found = [Expected(value, with_marks) for value, with_marks in zip(values, marked, strict=True)]
        return [
            replace(each, moved=difference(moved, each.value, each.valid))
            for each, moved in zip(found, rounded, strict=True)
        ]

    def _rounded(self, value: Array) -> Array:
        return value.astype(self.precision).astype(np.float64) if value.dtype.kind == "f" else value


def make_feeds(
    spec: GraphSpec, model_spec: ModelSpec, precision: np.dtype[Any], lowering: LoweringOptions
) -> list[Feed]:
    """For a decoder: a padded batch of prompts, a chunk after a past, and a batch of single steps after pasts of
    different lengths; for an encoder: a padded batch of texts, or a recording. Shorter where the model's context is.

    A cache that grows knows padding by the mask alone, where our ops count: its rows have no padding.
    """
    form = lowering.cache_form
    context = spec.stack.context_length if spec.stack is not None else model_spec.context_length
    total = min(TOKENS, context)
    feeds: list[tuple[str, tuple[int, ...], int, int]]
    if isinstance(spec.stack, EncoderConfig) and spec.stack.audio is not None:
        # One is enough: it has no padding, and every value of the graph is kept for its thousands of frames.
        feeds = [("recording", (context,), context, 0)]
    elif isinstance(spec.stack, EncoderConfig):
        feeds = [("batch of texts", (total, max(total // 2, 1)), total, 0)]
    else:
        prompt, chunk = max(total - 3, 1), max(total // 2 - 1, 1)
        shorter = (lambda length: length) if form == "dynamic" else (lambda length: max(length // 2, 1))
        feeds = [("prompt", (prompt, shorter(prompt)), prompt, prompt if form == "static" else 0)]
        if total > 1:
            # Where a graph takes both, the cache grows behind the chunk, and is static behind the steps.
            behind = total if form == "static" else total - chunk
            slots = total - 1 if form == "dynamic" else total
            feeds += [("chunk", (total,), chunk, behind), ("step", (total, shorter(total)), 1, slots)]
    random = np.random.default_rng(SEED)
    # Attention of the standard multiplies what it must not see with zero.
    unwritten = 0.0 if lowering.ops == "standard" and form == "static" else np.nan
    return [
        _feed(name, spec, model_spec, precision, random, unwritten, np.array(rows), *sizes)
        for name, rows, *sizes in feeds
    ]


def _feed(
    name: str,
    spec: GraphSpec,
    model_spec: ModelSpec,
    precision: np.dtype[Any],
    random: np.random.Generator,
    unwritten: float,
    lengths: NDArray[np.int64],
    new: int,
    past: int,
) -> Feed:
    """Rows of `lengths` tokens, the last `new` of them new (fewer in a shorter row of a prompt), and `past` slots."""
    written = np.arange(lengths.max()) < lengths[:, None]
    # What an encoder reads is the source; a decoder's row reads one of another length than its own.
    source = written
    if not isinstance(spec.stack, EncoderConfig):
        source = np.arange(SOURCE) < np.array([SOURCE, SOURCE // 2])[: len(lengths), None]
    sizes = {
        "batch_size": len(lengths), "sequence_length": new, "past_sequence_length": past,
        "total_sequence_length": written.shape[1], "source_length": source.shape[1],
    }  # fmt: skip
    before = np.arange(past) < lengths[:, None] - new
    inputs: dict[str, Array] = {}
    for tensor in spec.inputs:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims]
        if tensor.name.endswith("attention_mask"):
            inputs[tensor.name] = (source if "source_length" in tensor.dims else written).astype(np.int64)
        elif tensor.integer:
            inputs[tensor.name] = random.integers(0, _choices(tensor.name, spec, model_spec), shape)
        else:
            # Any keys and values will do, as long as no two caches hold the same; rounded, so that feeding adds no
            # error. What is not written may be anything; padding of a source is zero.
            value = random.normal(size=shape).astype(precision).astype(np.float64)
            if "past_sequence_length" in tensor.dims:
                value = np.where(before[:, None, :, None], value, unwritten)
            elif "source_length" in tensor.dims:
                value = np.where(source[:, None, :, None], value, 0.0)
            inputs[tensor.name] = value
    return Feed(name, inputs, written, padding=np.arange(new) >= lengths[:, None])


def _choices(name: str, spec: GraphSpec, model_spec: ModelSpec) -> int:
    """How many ids an input may hold."""
    if spec.stack is None:
        return model_spec.vocab_size
    if name == "token_type_ids":
        assert isinstance(spec.stack, EncoderConfig)
        return spec.stack.token_types
    return spec.stack.vocab_size


def difference(actual: Array, expected: Array, valid: NDArray[np.bool_]) -> float:
    """max |actual − expected| / max |expected| over the valid elements; NaN if anything there is not a number."""
    if actual.shape != expected.shape:
        return float("nan")
    a, b = actual[valid].astype(np.float64), expected[valid].astype(np.float64)
    if not a.size:
        return 0.0
    with np.errstate(all="ignore"):
        distance = np.where(a == b, 0.0, np.abs(a - b)).max()  # masked scores are −∞ on both sides
    return float(distance / (_largest(b) or 1.0)) if np.isfinite(distance) else float("nan")


def _largest(value: Array) -> float:
    finite = np.abs(value[np.isfinite(value)])
    return float(finite.max()) if finite.size else 0.0


def _constant(value: ir.Value) -> Array:
    """A weight or a constant, or what nodes make of weights alone (a transposed matrix)."""
    tensor = value.const_value
    if isinstance(tensor, StreamedTensor):
        return _widened(tensor.read().numpy())
    if tensor is not None:
        return _widened(tensor.numpy())
    node = value.producer()
    assert node is not None, f"{value.name} is neither made by a node nor a constant"
    inputs = [None if each is None else _constant(each) for each in node.inputs]
    return _function(node)(inputs)[list(node.outputs).index(value)]


def _function(node: ir.Node) -> Compute:
    """What a node computes, in float64 where it computes in any float."""
    if node.domain == DOMAIN:
        return lambda inputs: _torch_op(node, inputs)
    assert node.domain == "", f"{node.name}: {node.domain}::{node.op_type} has no canonical value"
    if node.op_type == "Cast":
        to = ir.DataType(node.attributes.get_int("to"))
        dtype = np.dtype(np.float64) if to.is_floating_point() else to.numpy()
        return lambda inputs: [array.astype(dtype) for array in _present(inputs)]
    if node.op_type == "GatherElements":
        axis = node.attributes.get_int("axis", 0)
        # onnx's own evaluator refuses negative axes, and axes of more than 64 elements.
        return lambda inputs: [np.take_along_axis(_present(inputs)[0], _present(inputs)[1], axis)]
    proto = ir.serde.serialize_node(node)
    given = [index for index, value in enumerate(node.inputs) if value is not None]
    del proto.input[:], proto.output[:]
    # Names of its own: a node may read one value twice, and those of absent outputs are empty.
    proto.input.extend(f"in_{index}" if index in given else "" for index in range(len(node.inputs)))
    proto.output.extend(f"out_{index}" for index in range(len(node.outputs)))
    inputs, outputs = ([onnx.ValueInfoProto(name=name) for name in end if name] for end in (proto.input, proto.output))
    evaluator = ReferenceEvaluator(onnx.helper.make_graph([proto], "node", inputs, outputs), opsets={"": OPSET})

    def compute(inputs: list[Array | None]) -> list[Array]:
        results: Any = evaluator.run(None, {f"in_{index}": inputs[index] for index in given})
        return [_widened(np.asarray(result)) for result in results]

    return compute


def _marking(op: str, compute: Compute, feed: Feed) -> Compute:
    """A node from and to marked values; what attention makes of padding, and slots that no token has, mean nothing.

    Marks before it are taken away first: attention reads no padding, but multiplies it with zero.
    """

    def mark_self(inputs: list[Array | None]) -> list[Array]:
        output, *presents = compute([*_unmarked(inputs[:3]), *inputs[3:]])  # query, key and value first
        output = np.where(feed.padding[..., None], np.nan, output)
        return [output, *(np.where(feed.written[:, None, :, None], present, np.nan) for present in presents)]

    def mark_cross(inputs: list[Array | None]) -> list[Array]:
        return compute([inputs[0], *_unmarked(inputs[1:3]), *inputs[3:]])  # key and value

    return {"GroupQueryAttention": mark_self, "CrossAttention": mark_cross}.get(op, compute)


def _unmarked(arrays: Iterable[Array | None]) -> list[Array | None]:
    return [None if array is None else np.nan_to_num(array) for array in arrays]


def _torch_op(node: ir.Node, inputs: Iterable[Array | None]) -> list[Array]:
    """One of our own ops, by its torch definition."""
    op = OPS[node.op_type]
    remaining = iter(inputs)
    arguments: list[Any] = []
    for argument in op._schema.arguments:
        if "Tensor" in str(argument.type):
            array = next(remaining, None)
            arguments.append(None if array is None else torch.from_numpy(np.array(array)))
        else:
            value = node.attributes[argument.name].value
            arguments.append(bool(value) if str(argument.type) == "bool" else value)
    results = op(*arguments)
    return [result.numpy() for result in (results if isinstance(results, tuple) else (results,))]


def _present(inputs: Iterable[Array | None]) -> list[Array]:
    return [array for array in inputs if array is not None]


def _widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
