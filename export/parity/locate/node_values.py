"""Compute the expected value of every node output of a lowered graph in float64, with which `locate` compares nodes.

The canonical graph is evaluated node by node before any pass changes it: our ops by their torch definitions
(`edgeformer/ops`), the others by onnx's reference evaluator. Then the same graph is lowered again, and the values that
only the lowered form has (packed products, lengths, the insides of decomposed ops) are evaluated from the canonical
ones. So a faulty pass or lowering cannot change its own reference: its outputs must equal canonical values.

Weights are read one at a time, for all feeds together. Besides them, memory holds the activations of a dozen tokens, or
of one recording.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from edgeformer.contract.ops import DOMAIN, FLOAT_PRODUCTS, RMS_NORM, TRANSPOSED_PRODUCT, Function
from edgeformer.export.capture.trace import OPSET
from edgeformer.export.graph.canonical import OPS
from edgeformer.export.graph.editing import streamed
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.export.lower import GraphJob
from edgeformer.export.parity.locate.node_feeds import Array, Feed, make_feeds
from edgeformer.export.quantize.quantized_tensor import quantized_once
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.runtime.sessions.session import CACHE_DTYPES

Compute = Callable[[list[Array | None]], list[Array]]

PRODUCTS = {each.key: each for functions in FLOAT_PRODUCTS.values() for each in functions}
"""Functions of one product, by their key: the lowering makes nodes of them for products that no canonical node has."""


@dataclass(frozen=True)
class Expected:
    """The expected value of one output on one feed.

    value: float64, or exact integers. marked: the same with NaN where the value depends on padding or on an unwritten
    slot of the cache. moved: its largest change, relative to its largest element, when the inputs of its node are
    rounded to the graph's precision; no kernel can be more exact.
    """

    value: Array
    marked: Array
    moved: float = 0.0

    @property
    def valid(self) -> NDArray[np.bool_]:
        """The elements that do not depend on padding."""
        return ~np.isnan(self.marked) if self.marked.dtype.kind == "f" else np.ones(self.marked.shape, np.bool_)


class NodeValues:
    """Expected values of every node of a fresh lowering of one graph, on every feed.

    fresh: that lowering, with its weights as inputs. weights: its weights, which are read on demand. origins: what made
    each of its nodes. outputs: the names of the graph's outputs.
    """

    def __init__(self, job: GraphJob, spec: GraphSpec) -> None:
        graph = job.captured(spec)
        self.precision = np.dtype(CACHE_DTYPES[job.plan.arithmetic])
        self.feeds = make_feeds(spec, job.model_spec, self.precision, job.lowering)
        self._expected: dict[str, list[Expected]] = {
            name: [Expected(feed.inputs[name], feed.inputs[name]) for feed in self.feeds]
            for name in self.feeds[0].inputs
        }
        self._evaluate(graph)
        self.origins = job.lower(graph, spec).origins
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
        """Return the name that output `index` of a node, called `name`, has in a fresh lowering; None if unknown.

        A graph output is identified by its own name and any other value by its node, because the names of values are
        numbered and shift when anything before them changes.
        """
        return name if name in self.outputs else self._place.get((node, index))

    def __getitem__(self, name: str) -> list[Expected]:
        """Return the expected values of an output of the fresh lowering, one for each feed."""
        return self._expected[name]

    def _evaluate(self, graph: ir.Model) -> None:
        """Evaluate every node that depends on the inputs and has outputs without an expected value."""
        known = self._expected
        for node in graph.graph:
            names = [output.name or "" for output in node.outputs]
            unknown = [name for name in names if name and name not in known]
            if not unknown:
                continue
            inputs = [value.name if value is not None and value.name in known else None for value in node.inputs]
            if not any(inputs):
                continue  # it reads weights only, and is evaluated by its readers
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
        """Return the outputs of a node. compute: its function; mark: the same function on marked values."""

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


def difference(actual: Array, expected: Array, valid: NDArray[np.bool_]) -> float:
    """Return max |actual − expected| / max |expected| over the valid elements; NaN if one of them is not finite."""
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
    """Return the value of a weight, of a constant, or of nodes that read only these (a transposed matrix)."""
    tensor = value.const_value
    if isinstance(tensor, StreamedTensor):
        return _widened(tensor.read().numpy())
    if tensor is not None:
        return _widened(tensor.numpy())
    node = value.producer()
    assert node is not None, f"{value.name} is neither made by a node nor a constant"
    inputs = [None if each is None else _constant(each) for each in node.inputs]
    return _function(node)(inputs)[list(node.outputs).index(value)]


def _rms_norm(inputs: Sequence[Array], epsilon: float) -> Array:
    x, weight = inputs
    normed: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * weight
    return normed


def _function(node: ir.Node) -> Compute:
    """Return the function of a node, which computes in float64 where the node has floats."""
    product = PRODUCTS.get((node.domain, node.op_type))
    if product is not None:
        return lambda inputs: [_product(product, *_present(inputs))]
    if node.domain == DOMAIN:
        return lambda inputs: _torch_op(node, inputs)
    assert node.domain == "", f"{node.name}: {node.domain}::{node.op_type} has no canonical value"
    if node.op_type == "Cast":
        to = ir.DataType(node.attributes.get_int("to"))
        dtype = np.dtype(np.float64) if to.is_floating_point() else to.numpy()
        return lambda inputs: [array.astype(dtype) for array in _present(inputs)]
    if node.op_type == RMS_NORM.name:  # onnxruntime's, which the reference evaluator does not know
        epsilon = node.attributes.get_float("epsilon")
        return lambda inputs: [_rms_norm(_present(inputs), epsilon)]
    if node.op_type == "GatherElements":
        axis = node.attributes.get_int("axis", 0)
        # onnx's reference evaluator refuses negative axes and axes of more than 64 elements.
        return lambda inputs: [np.take_along_axis(_present(inputs)[0], _present(inputs)[1], axis)]
    proto = ir.serde.serialize_node(node)
    for attribute in proto.attribute:
        _widen_graph(attribute.g)
    given = [index for index, value in enumerate(node.inputs) if value is not None]
    del proto.input[:], proto.output[:]
    # New names, since a node may read one value twice, and the names of absent outputs are empty.
    proto.input.extend(f"in_{index}" if index in given else "" for index in range(len(node.inputs)))
    proto.output.extend(f"out_{index}" for index in range(len(node.outputs)))
    inputs, outputs = ([onnx.ValueInfoProto(name=name) for name in end if name] for end in (proto.input, proto.output))
    evaluator = ReferenceEvaluator(onnx.helper.make_graph([proto], "node", inputs, outputs), opsets={"": OPSET})

    def compute(inputs: list[Array | None]) -> list[Array]:
        results: Any = evaluator.run(None, {f"in_{index}": inputs[index] for index in given})
        return [_widened(np.asarray(result)) for result in results]

    return compute


def _product(product: Function, x: Array, weight: Array) -> Array:
    return np.matmul(x, weight.T if product.body is TRANSPOSED_PRODUCT else weight)


def _widen_graph(graph: onnx.GraphProto) -> None:
    """Let a graph within a node, such as the body of a Scan, compute in float64 what it computes in floats."""
    constants = [each.t for node in graph.node if node.op_type == "Constant" for each in node.attribute]
    for tensor in (*graph.initializer, *constants):
        tensor.CopyFrom(onnx.numpy_helper.from_array(_widened(onnx.numpy_helper.to_array(tensor)), tensor.name))


def _marking(op: str, compute: Compute, feed: Feed) -> Compute:
    """Return the function of a node on marked values; attention marks padding and the cache slots without a token.

    Its inputs lose their marks first: attention does not use padding, but multiplies it by zero.
    """

    def mark_self(inputs: list[Array | None]) -> list[Array]:
        output, *presents = compute([*_unmarked(inputs[:3]), *inputs[3:]])  # query, key and value first
        output = np.where(feed.padding[..., None], np.nan, output)
        return [output, *(np.where(feed.written[:, None, :, None], present, np.nan) for present in presents)]

    def mark_shared(inputs: list[Array | None]) -> list[Array]:
        (output,) = compute([*_unmarked(inputs[:3]), *inputs[3:]])
        return [np.where(feed.padding[..., None], np.nan, output)]

    def mark_cross(inputs: list[Array | None]) -> list[Array]:
        return compute([inputs[0], *_unmarked(inputs[1:3]), *inputs[3:]])  # key and value

    marks = {"GroupQueryAttention": mark_self, "SharedAttention": mark_shared, "CrossAttention": mark_cross}
    return marks.get(op, compute)


def _unmarked(arrays: Iterable[Array | None]) -> list[Array | None]:
    return [None if array is None else np.nan_to_num(array) for array in arrays]


def _torch_op(node: ir.Node, inputs: Iterable[Array | None]) -> list[Array]:
    """Compute one of our own ops by its torch definition."""
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
