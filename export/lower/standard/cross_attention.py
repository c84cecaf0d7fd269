"""Lower cross-attention to ONNX's Attention. One that returns its weights, too, is decomposed."""

from typing import Any

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.attention_bodies import length_of
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.graph.function_bodies import decompose
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import NodeOrigin
from edgeformer.export.lower.options import LoweringOptions

HEADS_FIRST = [0, 2, 1, 3]
MASK_ORIGIN = NodeOrigin(
    f"{DOMAIN}::CrossAttention", "emitted by lower/standard for the mask that cross-attention reads"
)


def lower_cross_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every cross-attention; those with the same mask share what is added to the scores."""
    report = PassReport("CrossAttention")
    masks: dict[ir.Value, ir.Value] = {}
    for node in canonical_nodes(model, "CrossAttention"):
        if len(node.outputs) > 1:
            report.fire(node)
            decompose(node, lowering.cache_form)
            continue
        inputs = canonical_inputs(node)
        query, key, mask = inputs["query"], inputs["key"], inputs["attention_mask"]
        if mask not in masks:
            emit = NodeBuilder("source_mask", MASK_ORIGIN)
            masks[mask] = _added(emit, node, mask, query)
            model.graph.insert_before(node, emit.nodes)
        emit = NodeBuilder.replacing(node, "emitted by lower/standard")
        heads, head_dim = dim(key, 1), dim(key, 3)
        q = emit("Transpose", emit("Reshape", query, emit.constant([0, 0, heads, head_dim])), perm=HEADS_FIRST)
        options: dict[str, Any] = {name: node.attributes.get_float(name) for name in ("scale", "softcap")}
        attended = emit("Attention", q, key, inputs.value, masks[mask], **options)
        output = emit("Reshape", emit("Transpose", attended, perm=HEADS_FIRST), emit.constant([0, 0, heads * head_dim]))
        report.fire(node)
        replace_node(node, emit, [output])
    return report


def _added(emit: NodeBuilder, node: ir.Node, mask: ir.Value, query: ir.Value) -> ir.Value:
    """The summand of the scores: −inf for padding, [B, 1, S, T] from a mask [B, T]."""
    seen = emit("Unsqueeze", emit("Cast", mask, to=ir.DataType.BOOL), emit.constant([1, 2]))  # [B, 1, 1, T]
    dtype = dtype_of(query)
    added = emit("Where", seen, emit.constant(0.0, dtype), emit.constant(float("-inf"), dtype))
    # ONNX allows one row for all queries; onnxruntime wants one for each.
    rows = emit("Concat", emit.constant([1, 1]), length_of(emit, node, query), emit.constant([1]), axis=0)
    return emit("Expand", added, rows)
