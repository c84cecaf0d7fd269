"""Lower self-attention to ONNX Runtime's GroupQueryAttention.

Requires (onnxruntime 1.31) a head_dim that is a multiple of 8 and no relation vectors; on CUDA also float16 or
bfloat16, heads of 512 at most, and no bias beside sinks. The kernel has everything else of the op: rotation inside,
packed QKV, windows, soft-caps, sinks, biases, causal and bidirectional attention, a dynamic or static cache. What it
does not take is decomposed; a window of attention that is not causal, which the kernel refuses, is a bias.

A float16 cache of a float32 graph differs from a float32 one in the type of its tensors alone: onnxruntime has no such
CPU kernel, so the function that calls the node casts around it (kernels/kernel_nodes.py); edgeformer-kernels read the
cache as it is.

For CPUs queries are scaled before the kernel (scaled_query.py). The kernel also has an int8 cache, and on CUDA one of
float8 (both there for heads of 256 at most and without a bias): it rounds new keys and values by the scales that it is
given, attends to the rounded ones, and caches those. There is no other implementation of such a cache, so an attention
that the kernel does not take is refused then.
"""

import numpy as np
import onnx_ir as ir

from edgeformer.contract.ops import ATTENTION, DOMAIN, FP8_CACHE, INT8_CACHE
from edgeformer.contract.tensors import CacheForm, past_layer
from edgeformer.errors import ExportError
from edgeformer.export.graph import cache_forms
from edgeformer.export.graph.attention_bodies import length_of, visible_keys
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of, head_dim_of
from edgeformer.export.graph.function_bodies import decompose
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import NodeOrigin
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.attention.scaled_query import scale_query
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.parts import QuantizedCache

WINDOW_ORIGIN = NodeOrigin(
    f"{DOMAIN}::GroupQueryAttention", "emitted by lower/ort for windows of tokens that attend both ways"
)
LENGTHS_ORIGIN = NodeOrigin(
    f"{DOMAIN}::GroupQueryAttention", "emitted by lower/ort for the lengths that attention reads"
)

CACHE_TYPES: dict[QuantizedCache, ir.DataType] = {"int8": ir.DataType.INT8, "fp8": ir.DataType.FLOAT8E4M3FN}


def lower_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every attention that meets the requirements, and decompose the others.

    Raises ExportError for a quantized cache where one does not meet them.
    """
    report, lengths, windows = PassReport("GroupQueryAttention"), Lengths(model), Windows(model, lowering.cache_form)
    for node in canonical_nodes(model, "GroupQueryAttention"):
        reason = _no_kernel(node, lowering)
        is_cached = canonical_inputs(node).past_key is not None  # that of a tower is not
        if reason is not None and is_cached and lowering.cache_precision is not None:
            raise ExportError(
                f"{node.name} cannot have an {lowering.cache_precision} cache: {reason}. Leave cache_precision out."
            )
        if reason is not None:
            report.miss(node, reason)
            decompose(node, lowering.cache_form)
            continue
        report.fire(node)
        _emit_attention(node, *lengths.before(node), windows.before(node), lowering)
    return report


def _no_kernel(node: ir.Node, lowering: LoweringOptions) -> str | None:
    inputs, head_dim = canonical_inputs(node), head_dim_of(node)
    if head_dim % 8:
        return f"the kernel takes head_dim in multiples of 8, and this is {head_dim}"
    if inputs.value_relations is not None:
        return "no kernel adds relation vectors to values"
    return lowering.rules.attention(node, lowering.cache_scales, lowering.twin)


class Lengths:
    """The inputs of the kernel that hold the lengths of rows, computed once for all attentions with one mask."""

    def __init__(self, model: ir.Model):
        self._model = model
        self._lengths: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}

    def before(self, node: ir.Node) -> tuple[ir.Value, ir.Value]:
        """Return seqlens_k, int32 [B]: tokens of each row minus one; total_sequence_length, an int32 scalar."""
        mask = canonical_inputs(node)["attention_mask"]
        if mask not in self._lengths:
            number = f"_{len(self._lengths)}" if self._lengths else ""  # graphs of two stacks have two masks
            emit = NodeBuilder(f"lengths{number}", LENGTHS_ORIGIN)
            valid = emit("ReduceSum", mask, emit.constant([1]), keepdims=0)
            seqlens_k = emit("Cast", emit("Sub", valid, emit.constant(1)), to=ir.DataType.INT32)
            total = emit("Squeeze", emit("Shape", mask, start=1, end=2))
            self._lengths[mask] = seqlens_k, emit("Cast", total, to=ir.DataType.INT32)
            self._model.graph.insert_before(node, emit.nodes)
        return self._lengths[mask]


def _has_window_of_block(node: ir.Node) -> bool:
    """Return whether an attention sees tokens behind the query, and does not see those before its window."""
    return bool(node.attributes.get_int("window")) and not node.attributes.get_int("causal")


class Windows:
    """Biases that hide the keys before a window from attention that is not causal, once for all of one window."""

    def __init__(self, model: ir.Model, form: CacheForm):
        self._model, self._form = model, form
        self._biases: dict[tuple[ir.Value, int], ir.Value] = {}

    def before(self, node: ir.Node) -> ir.Value | None:
        """Return what is added to scores, [B, 1, S, T]; the bias of a node where it has no such window."""
        inputs = canonical_inputs(node)
        bias = inputs.attention_bias
        if not _has_window_of_block(node):
            return bias
        mask, window = inputs["attention_mask"], node.attributes.get_int("window")
        if (mask, window) not in self._biases:
            emit, dtype = NodeBuilder(f"window/{len(self._biases)}", WINDOW_ORIGIN), dtype_of(inputs.query)
            positions = cache_forms.token_positions(emit, mask, length_of(emit, node, inputs["query"]), self._form)
            valid = emit("Cast", mask, to=ir.DataType.BOOL)
            columns = cache_forms.key_positions(emit, mask, self._form)
            seen = visible_keys(emit, valid, positions, columns, node, self._form)
            hidden = emit("Where", seen, emit.constant(0.0, dtype), emit.constant(float("-inf"), dtype))
            self._biases[mask, window] = emit("Unsqueeze", hidden, emit.constant([1]))
            self._model.graph.insert_before(node, emit.nodes)
        assert bias is None, "models with blocks that attend both ways have no other biases"
        return self._biases[mask, window]


def _emit_attention(
    node: ir.Node, seqlens_k: ir.Value, total: ir.Value, bias: ir.Value | None, lowering: LoweringOptions
) -> None:
    inputs, attributes, scales = canonical_inputs(node), node.attributes, lowering.cache_scales
    emit, pasts = NodeBuilder.replacing(node, "emitted by lower/ort"), (inputs.past_key, inputs.past_value)
    query, scale = inputs["query"], attributes.get_float("scale")
    if lowering.rules.scales_queries and inputs.past_key is not None and scales is None:
        query, scale = scale_query(emit, query, scale, attributes.get_int("num_heads") * head_dim_of(node)), 1.0
    quantized = {} if scales is None else _cache_scales(emit, node, scales)
    outputs = emit.many(
        ATTENTION.name,
        *ATTENTION.ordered(
            query=query, key=inputs.key, value=inputs.value, past_key=inputs.past_key, past_value=inputs.past_value,
            seqlens_k=seqlens_k, total_sequence_length=total, cos_cache=inputs.cos, sin_cache=inputs.sin,
            attention_bias=bias, head_sink=inputs.sinks, **quantized,
        ),
        outputs=len(ATTENTION.outputs),
        domain=ATTENTION.domain,
        num_heads=attributes.get_int("num_heads"),
        kv_num_heads=attributes.get_int("num_kv_heads"),
        scale=scale,
        softcap=attributes.get_float("softcap"),
        local_window_size=-1 if _has_window_of_block(node) else attributes.get_int("window") or -1,
        do_rotary=int(inputs.cos is not None),
        rotary_interleaved=attributes.get_int("rotary_interleaved"),
        # onnxruntime before 1.29.1 has only causal attention, and refuses attributes that it does not know.
        **({} if attributes.get_int("causal") else {"causal": 0}),
        **({} if scales is None else INT8_CACHE if scales.precision == "int8" else FP8_CACHE),
    )  # fmt: skip
    replace_node(node, emit, outputs, main=outputs[0].producer())
    if scales is not None or lowering.half_cache:
        for cache in (*pasts, *outputs[1:]) if None not in pasts else ():
            assert cache is not None
            cache.type = ir.TensorType(ir.DataType.FLOAT16 if scales is None else CACHE_TYPES[scales.precision])


def _cache_scales(emit: NodeBuilder, node: ir.Node, scales: CacheScales) -> dict[str, ir.Value]:
    """k_scale and v_scale of the layer whose past a node reads: float32 [1, K, 1, D], or [1] for the whole layer."""
    past = canonical_inputs(node).past_key
    if past is None or not past.is_graph_input():
        raise ExportError(
            f"{node.name} reads no cache, so there is nothing to keep as {scales.precision}. Leave cache_precision out."
        )
    layer = past_layer(past.name or "")
    shape = (1, dim(past, 1), 1, dim(past, 3)) if scales.is_per_channel else (1,)
    given = {"k_scale": scales.key, "v_scale": scales.value}
    return {name: emit.constant(np.reshape(each[layer], shape), ir.DataType.FLOAT) for name, each in given.items()}
