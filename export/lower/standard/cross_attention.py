"""Attention to an encoder by ONNX's Attention. It requires nothing."""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.graph.function_bodies import length_of
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.passes import PassReport

HEADS_FIRST = [0, 2, 1, 3]


def lower_cross_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Use the op everywhere."""
    report = PassReport("CrossAttention")
    masks: dict[ir.Value, ir.Value] = {}
    for node in canonical_nodes(model, "CrossAttention"):
        query, key, value, mask = node.inputs
        assert query is not None and mask is not None
        if mask not in masks:
            emit = NodeBuilder("source_mask")
            seen = emit("Unsqueeze", emit("Cast", mask, to=ir.DataType.BOOL), emit.constant([1, 2]))  # [B, 1, 1, T]
            dtype = dtype_of(query)
            added = emit("Where", seen, emit.constant(0.0, dtype), emit.constant(float("-inf"), dtype))
            # One row for all queries would be standard; onnxruntime wants one for each.
            rows = emit("Concat", emit.constant([1, 1]), length_of(emit, node, query), emit.constant([1]), axis=0)
            masks[mask] = emit("Expand", added, rows)  # [B, 1, S, T]
            model.graph.insert_before(node, emit.nodes)
        emit = NodeBuilder(node.name or "")
        heads, head_dim = dim(key, 1), dim(key, 3)
        q = emit("Transpose", emit("Reshape", query, emit.constant([0, 0, heads, head_dim])), perm=HEADS_FIRST)
        attended = emit("Attention", q, key, value, masks[mask], scale=node.attributes.get_float("scale"))
        output = emit("Reshape", emit("Transpose", attended, perm=HEADS_FIRST), emit.constant([0, 0, heads * head_dim]))
        report.fire(node)
        replace_node(node, emit, [output])
    return report
