"""Self-attention by ONNX Runtime's GroupQueryAttention.

Requires (onnxruntime 1.31): head_dim a multiple of 8, no relation vectors; on CUDA float16 or bfloat16. Everything else
of the op the kernel has: rotation inside, packed QKV, windows, soft-caps, sinks, biases, attention both ways, a cache
that grows or stays. What it does not take is written out.
"""

import onnx_ir as ir

from edgeformer.export.bodies import write_out
from edgeformer.export.emit import Emitter, replace_node
from edgeformer.export.graph import canonical_nodes, dtype_of, head_dim_of
from edgeformer.export.lower.ort.names import CONTRIB
from edgeformer.export.lower.target import Target
from edgeformer.export.passes import PassReport
from edgeformer.manifest import Provider


def lower_attention(model: ir.Model, target: Target) -> PassReport:
    """Use the kernel wherever it takes the op."""
    report = PassReport("GroupQueryAttention")
    lengths: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for node in canonical_nodes(model, "GroupQueryAttention"):
        reason = _no_kernel(node, target.provider)
        if reason is not None:
            report.miss(node, reason)
            write_out(node, target.cache_form)
            continue
        mask = node.inputs[5]
        assert mask is not None
        if mask not in lengths:
            emit = Emitter("lengths")
            lengths[mask] = _lengths(emit, mask)
            model.graph.insert_before(node, emit.nodes)
        report.fire(node)
        _emit_attention(node, *lengths[mask])
    return report


def _no_kernel(node: ir.Node, provider: Provider) -> str | None:
    head_dim = head_dim_of(node)
    if head_dim % 8:
        return f"the kernel takes head_dim in multiples of 8, and this is {head_dim}"
    if len(node.inputs) > 10 and node.inputs[10] is not None:
        return "no kernel adds relation vectors to values"
    if provider == "cuda" and dtype_of(node.inputs[0]) == ir.DataType.FLOAT:
        return "there is no float32 CUDA kernel (float16 has one)"
    return None


def _lengths(emit: Emitter, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """seqlens_k, int32 [B]: valid tokens of each row less one; total_sequence_length, int32 scalar."""
    valid = emit("ReduceSum", mask, emit.constant([1]), keepdims=0)
    seqlens_k = emit("Cast", emit("Sub", valid, emit.constant(1)), to=ir.DataType.INT32)
    total = emit("Squeeze", emit("Shape", mask, start=1, end=2))
    return seqlens_k, emit("Cast", total, to=ir.DataType.INT32)


def _emit_attention(node: ir.Node, seqlens_k: ir.Value, total: ir.Value) -> None:
    query, key, value, past_key, past_value, _, cos, sin, bias, sinks = [*node.inputs, *[None] * 10][:10]
    attributes = node.attributes
    emit = Emitter(node.name or "")
    outputs = emit.many(
        "GroupQueryAttention", query, key, value, past_key, past_value, seqlens_k, total, cos, sin, None, bias, sinks,
        outputs=3,
        domain=CONTRIB,
        num_heads=attributes.get_int("num_heads"),
        kv_num_heads=attributes.get_int("num_kv_heads"),
        scale=attributes.get_float("scale"),
        softcap=attributes.get_float("softcap"),
        local_window_size=attributes.get_int("window") or -1,
        do_rotary=int(cos is not None),
        rotary_interleaved=attributes.get_int("rotary_interleaved"),
        causal=attributes.get_int("causal"),
    )  # fmt: skip
    replace_node(node, emit, outputs)
