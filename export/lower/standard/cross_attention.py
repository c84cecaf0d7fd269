"""Attention to an encoder by ONNX's Attention. It requires nothing."""

import onnx_ir as ir

from edgeformer.export.emit import Emitter, replace_node
from edgeformer.export.graph import canonical_nodes, dim
from edgeformer.export.lower.target import Target
from edgeformer.export.passes import PassReport

HEADS_FIRST = [0, 2, 1, 3]


def lower_cross_attention(model: ir.Model, target: Target) -> PassReport:
    """Use the op everywhere."""
    report = PassReport("CrossAttention")
    masks: dict[ir.Value, ir.Value] = {}
    for node in canonical_nodes(model, "CrossAttention"):
        query, key, value, mask = node.inputs
        assert query is not None and mask is not None
        if mask not in masks:
            emit = Emitter("source_mask")
            masks[mask] = emit("Unsqueeze", emit("Cast", mask, to=ir.DataType.BOOL), emit.constant([1, 2]))
            model.graph.insert_before(node, emit.nodes)
        emit = Emitter(node.name or "")
        heads, head_dim = dim(key, 1), dim(key, 3)
        rows = emit("Concat", emit.constant([1, 1]), emit("Shape", query, start=1, end=2), emit.constant([1]), axis=0)
        q = emit("Transpose", emit("Reshape", query, emit.constant([0, 0, heads, head_dim])), perm=HEADS_FIRST)
        # A mask of one row for all queries is standard, and onnxruntime wants one for each.
        visible = emit("Expand", masks[mask], rows)  # [B, 1, S, T]
        attended = emit("Attention", q, key, value, visible, scale=node.attributes.get_float("scale"))
        output = emit("Reshape", emit("Transpose", attended, perm=HEADS_FIRST), emit.constant([0, 0, heads * head_dim]))
        report.fire(node)
        replace_node(node, emit, [output])
    return report
