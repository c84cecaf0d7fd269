"""Attention to an encoder by ONNX Runtime's MultiHeadAttention.

The kernel takes keys and values [B, H, T, D] as they are, and masks padding. On CPUs it gets scaled queries, as that of
self-attention does. Requires (onnxruntime 1.31) float32 on the CPU; CUDA has float16 too. What it does not take is
written out.
"""

import numpy as np
import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.graph.function_bodies import decompose
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.attention import scale_query
from edgeformer.export.lower.ort.names import CONTRIB
from edgeformer.export.passes import PassReport


def lower_cross_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Use the kernel wherever it takes the op."""
    report = PassReport("CrossAttention")
    masks: dict[ir.Value, ir.Value] = {}
    for node in canonical_nodes(model, "CrossAttention"):
        query, key, value, mask = node.inputs
        assert query is not None and mask is not None
        dtype = dtype_of(query)
        if lowering.provider == "cpu" and dtype != ir.DataType.FLOAT:
            report.miss(node, "there is no float16 CPU kernel")
            decompose(node, lowering.cache_form)
            continue
        if mask not in masks:
            emit = NodeBuilder("source_mask")
            masks[mask] = emit("Cast", mask, to=ir.DataType.INT32)
            model.graph.insert_before(next(iter(model.graph)), emit.nodes)
        emit = NodeBuilder(node.name or "")
        scale = node.attributes.get_float("scale")
        if lowering.provider == "cpu":
            query, scale = scale_query(emit, query, scale, dim(query, -1)), 1.0
        attended = emit(
            "MultiHeadAttention", query, key, value, None, masks[mask],
            domain=CONTRIB,
            num_heads=dim(key, 1),
            scale=scale,
            # Added to the scores of padding. The default, −10000, hides nothing from scores of that size.
            mask_filter_value=float(np.finfo(dtype.numpy()).min),
        )  # fmt: skip
        report.fire(node)
        replace_node(node, emit, [attended], main=attended.producer())
    return report
