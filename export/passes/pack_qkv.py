"""Pack the three projections before attention into one matrix product.

    x → MatMul(Wq) (+ bq) ─┐
    x → MatMul(Wk) (+ bk) ─┼→ GroupQueryAttention     becomes     x → MatMul([Wq Wk Wv]) (+ [bq bk bv]) → …(packed)
    x → MatMul(Wv) (+ bv) ─┘

Queries and keys that turn by positions of several axes are rotated behind the packed product, which is split:

    x → MatMul([Wq Wk Wv]) → Split → RotaryEmbedding (query), RotaryEmbedding (key) → GroupQueryAttention

so that this graph has the weights of the graph of text, whose attention rotates by itself (fold_rotary).

Requires that the three read the same input, that their weights are stored [in, out] and only such products read them,
and that all three have biases or none has. Blocks that share weights share the packed ones.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import (
    add_initializer,
    canonical_nodes,
    dim,
    dtype_of,
    head_dim_of,
    producer,
    remove_if_unused,
    same_type,
    streamed,
)
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import NodeOrigin, record_change
from edgeformer.export.graph.tensors import StreamedTensor, join

PACKED = "packed by pack_qkv"


@dataclass(frozen=True)
class _Projection:
    x: ir.Value
    weight: StreamedTensor
    bias: StreamedTensor | None
    matmul: ir.Node
    add: ir.Node | None


def pack_qkv(model: ir.Model, accepts: Callable[[int, int], bool] = lambda head_dim, rotary_dim: True) -> PassReport:
    """Pack the projections of every attention that meets the requirements.

    accepts: whether attention rotates by itself in the graph of text, of head_dim and rotary_dim.
    """
    report, seen = PassReport("pack_qkv"), Counter[str]()
    for attention in canonical_nodes(model, "GroupQueryAttention"):
        inputs = canonical_inputs(attention)
        if inputs.key is None:
            continue
        rotations = _rotations(attention, accepts)
        read = (inputs.query, inputs.key) if rotations is None else tuple(node.inputs[0] for node in rotations)
        q, k, v = (_projection(value) for value in (*read, inputs.value))
        if q is None or k is None or v is None:
            report.miss(attention, "query, key or value is not a plain projection")
            continue
        if not q.x is k.x is v.x:
            report.miss(attention, "query, key and value read different inputs")
            continue
        biases = [projection.bias for projection in (q, k, v) if projection.bias is not None]
        if len(biases) not in (0, 3):
            report.miss(attention, "some of query, key and value have a bias and some have none")
            continue
        layer = q.weight.source.parameters[0].rsplit(".", 2)[0]  # blocks.0.attention.query.weight → blocks.0.attention
        repeat = f"_{seen[layer]}" if seen[layer] else ""
        seen[layer] += 1
        emit = NodeBuilder(f"{layer}.qkv{repeat}", NodeOrigin("three of MatMul", PACKED))
        weight = _packed(model, f"{layer}.qkv.weight", [q.weight, k.weight, v.weight])
        packed = emit("MatMul", q.x, weight)
        if biases:
            packed = emit("Add", packed, _packed(model, f"{layer}.qkv.bias", biases))
        query = inputs["query"]
        assert query.shape is not None and weight.shape is not None
        packed.dtype, packed.shape = dtype_of(query), ir.Shape([*query.shape[:-1], weight.shape[-1]])
        if rotations is None:
            model.graph.insert_before(attention, emit.nodes)
            inputs.set(query=packed, key=None, value=None)
        else:
            projected = [*(canonical_inputs(node)["x"] for node in rotations), inputs["value"]]
            parts = emit.many("Split", packed, emit.constant([dim(each, -1) for each in projected]), outputs=3, axis=-1)
            for part, each in zip(parts, projected, strict=True):
                same_type(part, each)
            model.graph.insert_before(rotations[0], emit.nodes)
            for node, part in zip(rotations, parts, strict=False):
                node.replace_input_with(0, part)
            inputs.set(value=parts[2])
        for projection in (q, k, v):
            remove_if_unused(model, projection.add, projection.matmul)
        record_change(attention, PACKED)
        report.fire(attention)
    return report


def _rotations(attention: ir.Node, accepts: Callable[[int, int], bool]) -> tuple[ir.Node, ir.Node] | None:
    """Return the rotations of query and key that fold_rotary leaves for their positions alone; None for others."""
    inputs = canonical_inputs(attention)
    nodes = [producer(value, "RotaryEmbedding", DOMAIN) for value in (inputs.query, inputs.key)]
    query, key = nodes
    if query is None or key is None:
        return None
    rotation = canonical_inputs(query)
    by_slots = producer(rotation.positions, "TokenPositions", DOMAIN) is not None
    turned = head_dim_of(attention), 2 * dim(rotation.cos, -1)
    return None if by_slots or not accepts(*turned) else (query, key)


def _packed(model: ir.Model, name: str, parts: list[StreamedTensor]) -> ir.Value:
    """Return the weight that holds the parts; the blocks that share them have it from the first of these."""
    present = model.graph.initializers.get(name)
    return add_initializer(model, join(name, parts)) if present is None else present


def _projection(value: ir.Value | None) -> _Projection | None:
    """Match value = MatMul(x, W) or Add(MatMul(x, W), b) that nothing else reads."""
    if value is None or len(value.uses()) != 1:
        return None
    add, bias = producer(value, "Add"), None
    if add is not None:
        bias = streamed(add.inputs[1])
        if bias is None:
            return None
        value = add.inputs[0]
    matmul = producer(value, "MatMul")
    if matmul is None:
        return None
    x, weight = matmul.inputs
    tensor = streamed(weight)
    if x is None or weight is None or tensor is None:
        return None
    if any(use.node.op_type != "MatMul" or use.idx != 1 for use in weight.uses()):
        return None
    return _Projection(x, tensor, bias, matmul, add)
