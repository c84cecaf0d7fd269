"""Lower cross-attention to ONNX Runtime's MultiHeadAttention.

The kernel takes keys and values [B, H, T, D] as they are, and masks padding. For CPUs queries are scaled before it, as
in self-attention. Requires (onnxruntime 1.31) no soft-cap, and float32 on the CPU; CUDA has float16 and bfloat16 too.
Everything else is decomposed.
"""

import onnx_ir as ir
import torch

from edgeformer.contract.ops import CONTRIB, DOMAIN
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.graph.function_bodies import decompose
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import NodeOrigin, origin_of
from edgeformer.export.graph.tensors import TORCH_DTYPES
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.attention.scaled_query import scale_query

MASK_ORIGIN = NodeOrigin(f"{DOMAIN}::CrossAttention", "emitted by lower/ort for the mask that cross-attention reads")


def lower_cross_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every attention that meets the requirements, and decompose the others."""
    report = PassReport("CrossAttention")
    masks: dict[ir.Value, ir.Value] = {}
    for node in canonical_nodes(model, "CrossAttention"):
        inputs = canonical_inputs(node)
        query, key, mask = inputs["query"], inputs["key"], inputs["attention_mask"]
        dtype, scales_query = dtype_of(query), lowering.rules.scales_queries
        reason = _no_kernel(node, lowering)
        if reason is None and len(node.outputs) > 1:  # in an alignment graph: no kernel returns the weights
            if scales_query:  # as the decoder's own graph does, so that both store the same parameters
                _scale_before(node, query)
            report.fire(node)
            decompose(node, lowering.cache_form)
            continue
        if reason is not None:
            report.miss(node, reason)
            decompose(node, lowering.cache_form)
            continue
        if mask not in masks:
            emit = NodeBuilder("source_mask", MASK_ORIGIN)
            masks[mask] = emit("Cast", mask, to=ir.DataType.INT32)
            model.graph.insert_before(next(iter(model.graph)), emit.nodes)
        emit = NodeBuilder.replacing(node, "emitted by lower/ort")
        scale = node.attributes.get_float("scale")
        if scales_query:
            query, scale = scale_query(emit, query, scale, dim(query, -1)), 1.0
        attended = emit(
            "MultiHeadAttention", query, key, inputs.value, None, masks[mask],
            domain=CONTRIB,
            num_heads=dim(key, 1),
            scale=scale,
            # Added to the scores of padding. The default, −10000, does not hide a score of that magnitude.
            mask_filter_value=torch.finfo(TORCH_DTYPES[dtype]).min,
        )  # fmt: skip
        report.fire(node)
        replace_node(node, emit, [attended], main=attended.producer())
    return report


def _scale_before(node: ir.Node, query: ir.Value) -> None:
    """Scale the query of an attention before it, where its projection can take over the scale."""
    emit = NodeBuilder(f"{node.name}/query", origin_of(node).replaced("emitted by lower/ort"))
    node.replace_input_with(0, scale_query(emit, query, node.attributes.get_float("scale"), dim(query, -1)))
    node.attributes["scale"] = ir.AttrFloat32("scale", 1.0)
    assert node.graph is not None
    node.graph.insert_before(node, emit.nodes)


def _no_kernel(node: ir.Node, lowering: LoweringOptions) -> str | None:
    soft_cap = node.attributes.get_float("softcap")
    return lowering.rules.cross_attention(node) or ("the kernel has no soft-cap" if soft_cap else None)
