"""Self-attention by ONNX Runtime's GroupQueryAttention.

Requires (onnxruntime 1.31): head_dim a multiple of 8, no relation vectors; on CUDA float16 or bfloat16. Everything else
of the op the kernel has: rotation inside, packed QKV, windows, soft-caps, sinks, biases, attention both ways, a cache
that grows or stays. What it does not take is written out.

On x86 CPUs onnxruntime's fast product of one query with all keys takes no scale. So for CPUs queries are scaled before,
by the weights that make them wherever they can be. With that and the kernel that sessions choose (runtime/session.py),
attention in a decode step is 1.5 to 2.7 times as fast.

An int8 cache is the kernel's, too (on the CPU): it rounds new keys and values by the scales that it is given, attends
to what it has rounded, and caches that. There is no other form of it, so what the kernel does not take is refused then.
"""

from math import frexp

import numpy as np
import onnx_ir as ir

from edgeformer.cache_scales import CacheScales
from edgeformer.errors import ExportError
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of, head_dim_of, producer, read_once, streamed
from edgeformer.export.graph.function_bodies import decompose
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.names import CONTRIB
from edgeformer.export.passes import PassReport
from edgeformer.manifest import Provider

QUANTIZED = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
"""Attributes of the kernel with an int8 cache."""


def lower_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Use the kernel wherever it takes the op."""
    report = PassReport("GroupQueryAttention")
    lengths: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for node in canonical_nodes(model, "GroupQueryAttention"):
        reason = _no_kernel(node, lowering.provider)
        if reason is not None and lowering.cache_scales is not None:
            raise ExportError(f"{node.name} cannot have an int8 cache: {reason}. Leave cache_precision out.")
        if reason is not None:
            report.miss(node, reason)
            decompose(node, lowering.cache_form)
            continue
        mask = node.inputs[5]
        assert mask is not None
        if mask not in lengths:
            emit = NodeBuilder("lengths")
            lengths[mask] = _lengths(emit, mask)
            model.graph.insert_before(node, emit.nodes)
        report.fire(node)
        _emit_attention(node, *lengths[mask], lowering)
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


def _lengths(emit: NodeBuilder, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """seqlens_k, int32 [B]: valid tokens of each row less one; total_sequence_length, int32 scalar."""
    valid = emit("ReduceSum", mask, emit.constant([1]), keepdims=0)
    seqlens_k = emit("Cast", emit("Sub", valid, emit.constant(1)), to=ir.DataType.INT32)
    total = emit("Squeeze", emit("Shape", mask, start=1, end=2))
    return seqlens_k, emit("Cast", total, to=ir.DataType.INT32)


def _emit_attention(node: ir.Node, seqlens_k: ir.Value, total: ir.Value, lowering: LoweringOptions) -> None:
    query, key, value, past_key, past_value, _, cos, sin, bias, sinks = [*node.inputs, *[None] * 10][:10]
    attributes, scales = node.attributes, lowering.cache_scales
    emit = NodeBuilder(node.name or "")
    assert query is not None
    scale = attributes.get_float("scale")
    if lowering.provider == "cpu" and past_key is not None and scales is None:
        query, scale = scale_query(emit, query, scale, attributes.get_int("num_heads") * head_dim_of(node)), 1.0
    quantized = [] if scales is None else _cache_scales(emit, node, scales)
    outputs = emit.many(
        "GroupQueryAttention", query, key, value, past_key, past_value, seqlens_k, total, cos, sin, None, bias, sinks,
        *quantized,
        outputs=3,
        domain=CONTRIB,
        num_heads=attributes.get_int("num_heads"),
        kv_num_heads=attributes.get_int("num_kv_heads"),
        scale=scale,
        softcap=attributes.get_float("softcap"),
        local_window_size=attributes.get_int("window") or -1,
        do_rotary=int(cos is not None),
        rotary_interleaved=attributes.get_int("rotary_interleaved"),
        # onnxruntime before 1.29.1 has none but causal attention, and refuses what it does not know.
        **({} if attributes.get_int("causal") else {"causal": 0}),
        **(QUANTIZED if scales is not None else {}),
    )  # fmt: skip
    replace_node(node, emit, outputs, main=outputs[0].producer())
    if scales is not None:
        for cache in (past_key, past_value, *outputs[1:]):
            assert cache is not None
            cache.type = ir.TensorType(ir.DataType.INT8)


def scale_query(emit: NodeBuilder, query: ir.Value, scale: float, width: int) -> ir.Value:
    """Queries [..., width] times `scale`; keys and values that are packed behind them stay."""
    if scale == 1 or _made_scaled(query, scale, width):
        return query
    dtype, packed = dtype_of(query), dim(query, -1)
    factors = scale if packed == width else np.repeat([scale, 1], [width, packed - width])
    return emit("Mul", query, emit.constant(factors, dtype))


def _made_scaled(query: ir.Value, scale: float, width: int) -> bool:
    """Let the weights that make queries make them times `scale`, if nobody else reads them and it loses no digit.

    Powers of two lose none in float32, and what is stored as integers has rounded scales in any case.
    """
    add = producer(query, "Add")
    made, bias = ([query], []) if add is None else ([query, add.inputs[0]], [add.inputs[1]])
    product = producer(made[-1], "MatMul") or producer(made[-1], "QuantizedMatMul", DOMAIN)
    if product is None or dtype_of(query) != ir.DataType.FLOAT:
        return False
    if frexp(scale)[0] != 0.5 and (product.domain != DOMAIN or bias):
        return False
    weights = [*product.inputs[1:], *bias]
    tensors = {value: tensor for value in weights if (tensor := streamed(value)) is not None}
    if len(tensors) < len(weights) or not all(value is not None and read_once(value) for value in [*made, *weights]):
        return False
    for weight, tensor in tensors.items():
        weight.const_value = tensor.scaled(width, scale)  # type: ignore[union-attr]
    for value in made:
        value.name = f"{value.name}/scaled"  # type: ignore[union-attr]
    return True


def _cache_scales(emit: NodeBuilder, node: ir.Node, scales: CacheScales) -> list[ir.Value]:
    """k_scale and v_scale of the layer whose past a node reads: float32 [1, K, 1, D]."""
    past = node.inputs[3]
    if past is None or not past.is_graph_input():
        raise ExportError(
            f"{node.name} reads no cache, so there is nothing to keep as int8. Leave cache_precision out."
        )
    layer = int((past.name or "").split(".")[1])
    shape = 1, dim(past, 1), 1, dim(past, 3)
    return [emit.constant(np.reshape(each[layer], shape), ir.DataType.FLOAT) for each in (scales.key, scales.value)]
