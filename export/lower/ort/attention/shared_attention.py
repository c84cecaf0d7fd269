"""Lower attention to an earlier layer's keys and values to ONNX Runtime's GroupQueryAttention.

The kernel takes the present of the earlier layer as its past, and no new keys and values: tensors of 0 tokens. It
rotates only the query then, writes nothing and copies nothing; its time depends on the tokens in the cache and not on
the length of the buffer, unlike that of every other way (Attention of opset 24 takes 10 times as long for 512 tokens in
a buffer of 4096; onnxruntime 1.31). Since the present is read, the earlier layer comes first, also where past and
present are one buffer.

Requires (onnxruntime 1.31) a head_dim that is a multiple of 8. Nobody has run the CUDA kernel with empty keys for this
project, so CUDA gets the function body.
"""

import onnx_ir as ir

from edgeformer.contract.ops import ATTENTION
from edgeformer.errors import ExportError
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of, head_dim_of
from edgeformer.export.graph.function_bodies import decompose
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.attention.attention import Lengths
from edgeformer.export.lower.ort.attention.scaled_query import scale_query


def lower_shared_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every shared attention that meets the requirements, and decompose the others.

    Raises ExportError for a quantized cache, which the kernel does not share.
    """
    report, lengths = PassReport("SharedAttention"), Lengths(model)
    for node in canonical_nodes(model, "SharedAttention"):
        if lowering.cache_precision is not None:
            raise ExportError(
                f"{node.name} reads the keys and values of an earlier layer, which cannot be "
                f"{lowering.cache_precision}. Leave cache_precision out."
            )
        reason = _no_kernel(node, lowering)
        if reason is not None:
            report.miss(node, reason)
            decompose(node, lowering.cache_form)
            continue
        report.fire(node)
        _emit_attention(node, *lengths.before(node), lowering)
    return report


def _no_kernel(node: ir.Node, lowering: LoweringOptions) -> str | None:
    head_dim = head_dim_of(node)
    if head_dim % 8:
        return f"the kernel takes head_dim in multiples of 8, and this is {head_dim}"
    return lowering.rules.shared_attention(node)


def _emit_attention(node: ir.Node, seqlens_k: ir.Value, total: ir.Value, lowering: LoweringOptions) -> None:
    inputs, attributes = canonical_inputs(node), node.attributes
    emit, dtype = NodeBuilder.replacing(node, "emitted by lower/ort"), dtype_of(inputs.query)
    query, key = inputs["query"], inputs["key"]
    query = scale_query(emit, query, attributes.get_float("scale"), dim(query, -1))
    rows = emit("Shape", inputs["attention_mask"], start=0, end=1)
    shape = emit("Concat", rows, emit.constant([0, dim(key, 1) * dim(key, 3)]), axis=0)
    nothing = emit("ConstantOfShape", shape, value=ir.tensor([0.0], dtype=dtype))  # [B, 0, K·D]
    output = emit(
        ATTENTION.name,
        *ATTENTION.ordered(
            query=query, key=nothing, value=nothing, past_key=key, past_value=inputs.value,
            seqlens_k=seqlens_k, total_sequence_length=total, cos_cache=inputs.cos, sin_cache=inputs.sin,
            attention_bias=inputs.attention_bias, head_sink=inputs.sinks,
        ),
        domain=ATTENTION.domain,
        num_heads=attributes.get_int("num_heads"),
        kv_num_heads=attributes.get_int("num_kv_heads"),
        scale=1.0,
        softcap=attributes.get_float("softcap"),
        local_window_size=attributes.get_int("window") or -1,
        do_rotary=int(inputs.cos is not None),
        rotary_interleaved=attributes.get_int("rotary_interleaved"),
    )  # fmt: skip
    replace_node(node, emit, [output], main=output.producer())
