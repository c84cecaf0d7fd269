"""Scale queries before an attention kernel.

On x86 CPUs onnxruntime's fast product of one query with all keys takes no scale. So for CPUs queries are scaled before
the kernel, in the weights of their projection where that is exact, or in those of a norm of their heads:

    x → MatMul(Wq) (+ bq) → query → kernel(scale)     becomes     x → MatMul(Wq·scale) (+ bq·scale) → kernel(1)
    heads → RMSNorm(w) → query → kernel(scale)        becomes     heads → RMSNorm(w·scale) → kernel(1)

Requires float32, that nothing else reads the projection, the norm or their weights, and that no digit is lost: the
scale is a power of two, or the weights of a projection are stored as integers, whose scales are rounded anyway, and
there is no bias. Elsewhere a Mul scales the query. With this and the kernel that sessions choose
(runtime/sessions/session.py), attention in a decode step is 1.5 to 2.7 times as fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp

import numpy as np
import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import dim, dtype_of, producer, read_once, streamed
from edgeformer.export.graph.tensors import StreamedTensor


@dataclass(frozen=True)
class _Scalable:
    """A product or a norm: its weights (of a quantized product, its integers, scales …), and its results."""

    weights: Sequence[tuple[ir.Value, StreamedTensor]]
    results: Sequence[ir.Value]


def scale_query(emit: NodeBuilder, query: ir.Value, scale: float, width: int) -> ir.Value:
    """Return queries [..., width] times `scale`; keys and values that are packed behind them stay as they are."""
    if scale == 1:
        return query
    found = _find_norm(query, scale) or _find_projection(query, scale)
    if found is not None:
        for weight, tensor in found.weights:
            weight.const_value = tensor.scaled(width, scale)
        for result in found.results:
            result.name = f"{result.name}/scaled"
        return query
    dtype, packed = dtype_of(query), dim(query, -1)
    factors = scale if packed == width else np.repeat([scale, 1], [width, packed - width])
    scaled = emit("Mul", query, emit.constant(factors, dtype))
    scaled.type, scaled.shape = query.type, query.shape
    return scaled


def _find_norm(query: ir.Value, scale: float) -> _Scalable | None:
    """Return the norm of a query's heads, if its weight can take over the scale. A rotation behind it is left."""
    if not _is_power_of_two(scale):
        return None
    rotation = producer(query, "RotaryEmbedding", DOMAIN)
    joined = query if rotation is None else rotation.inputs[0]
    reshape = producer(joined, "Reshape")  # of heads by themselves to all of them
    norm = producer(joined if reshape is None else reshape.inputs[0], "RMSNorm", DOMAIN)
    weight = None if norm is None else canonical_inputs(norm).weight
    tensor = streamed(weight)
    if norm is None or weight is None or tensor is None or dtype_of(query) != ir.DataType.FLOAT:
        return None
    results = [value for value in dict.fromkeys((norm.outputs[0], joined, query)) if value is not None]
    return _Scalable([(weight, tensor)], results) if all(map(read_once, (weight, *results))) else None


def _find_projection(query: ir.Value, scale: float) -> _Scalable | None:
    """Return the projection that computes a query, if its weights can take over the scale.

    A rotation behind it is left: what it turns is as much longer or shorter then.
    """
    rotation = producer(query, "RotaryEmbedding", DOMAIN)
    split = None if rotation is None else producer(rotation.inputs[0], "Split")
    packed = None if split is None else split.inputs[0]
    if rotation is not None and split is not None and packed is not None and split.outputs[0] is rotation.inputs[0]:
        if not all(map(read_once, (query, split.outputs[0], packed))):
            return None
        query = packed
    add = producer(query, "Add")
    results, biases = ([query], []) if add is None else ([query, add.inputs[0]], [add.inputs[1]])
    product = producer(results[-1], "MatMul") or producer(results[-1], "QuantizedMatMul", DOMAIN)
    if product is None or dtype_of(query) != ir.DataType.FLOAT:
        return None
    if not _is_power_of_two(scale) and (product.domain != DOMAIN or biases):
        return None
    weights = [(value, streamed(value)) for value in (*product.inputs[1:], *biases)]
    found = [(value, tensor) for value, tensor in weights if value is not None and tensor is not None]
    values = [value for value in (*results, *(value for value, _ in found)) if value is not None]
    if len(found) < len(weights) or not all(map(read_once, values)):
        return None
    return _Scalable(found, values[: len(results)])


def _is_power_of_two(scale: float) -> bool:
    return frexp(scale)[0] == 0.5
