"""Lower self-attention to ONNX's Attention.

    dynamic   Attention(q, k, v, mask, past) → present: the op concatenates the new keys and values to the past
    static    TensorScatter(past, k), TensorScatter(past, v) → present; Attention(q, present, mask, nonpad_kv_seqlen)
    shared    Attention(q, present of the earlier layer, mask), with nonpad_kv_seqlen where the cache is static

What a query sees is given by a mask, which is computed once for all layers with the same window and bias: `is_causal`
counts from the end of the cache, which is wrong for a batch of padded prompts. Requires that the attention has neither
sinks nor relation vectors, which the op does not have. In a static cache, the slots behind a row's tokens must be
finite, because the op multiplies them by zero.
"""

from collections.abc import Callable, Hashable
from typing import Any

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.contract.tensors import CacheForm
from edgeformer.export.graph import cache_forms
from edgeformer.export.graph.attention_bodies import length_of, split_packed, visible_keys
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dtype_of, head_dim_of, producer
from edgeformer.export.graph.function_bodies import decompose
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import NodeOrigin
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.standard.rotary import rotate

HEADS_FIRST = [0, 2, 1, 3]
SHARED_ORIGIN = NodeOrigin(
    f"{DOMAIN}::GroupQueryAttention", "emitted by lower/standard for the masks and lengths that attention reads"
)


def lower_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every attention that meets the requirements, and decompose the others."""
    report = PassReport("GroupQueryAttention")
    shared: dict[Hashable, ir.Value] = {}
    for node in canonical_nodes(model, "GroupQueryAttention", "SharedAttention"):
        inputs, own = canonical_inputs(node), node.op_type == "GroupQueryAttention"
        relations = inputs.value_relations if own else None
        missing = "sinks" if inputs.sinks is not None else "relation vectors" if relations is not None else ""
        if missing:
            report.miss(node, f"Attention has no {missing}")
            decompose(node, lowering.cache_form)
            continue
        report.fire(node)
        emit_attention = _emit_attention if own else _emit_shared_attention
        emit_attention(node, _Shared(model, lowering.cache_form, shared, node))
    return report


class _Shared:
    """Values that several layers read, computed before the first layer that does.

    values: those of all layers, by what they depend on. The properties are those of one attention.
    """

    def __init__(self, model: ir.Model, form: CacheForm, values: dict[Hashable, ir.Value], node: ir.Node):
        self.model, self.form, self.values, self.node = model, form, values, node
        self.inputs = canonical_inputs(node)
        self.mask = self.inputs["attention_mask"]
        cache = self.inputs.past_key if node.op_type == "GroupQueryAttention" else self.inputs.key
        self.past = cache if form == "static" else None

    @property
    def positions(self) -> ir.Value:
        """Positions of the queries: int64 [B, S]."""
        return self._once(
            ("positions", self.mask),
            lambda emit: cache_forms.token_positions(emit, self.mask, self._new(emit), self.form),
        )

    @property
    def first_slots(self) -> ir.Value:
        """The slot that the first new token of each row is written to: int64 [B]."""
        positions = self.positions
        return self._once(("first", self.mask), lambda emit: emit("Gather", positions, emit.constant(0), axis=1))

    @property
    def lengths(self) -> ir.Value:
        """Number of tokens of each row: int64 [B]."""
        return self._once(
            ("lengths", self.mask), lambda emit: emit("ReduceSum", self.mask, emit.constant([1]), keepdims=0)
        )

    @property
    def added(self) -> ir.Value:
        """The summand of the scores, [B, 1 or H, S, slots]: the bias, or −inf for keys that a query does not see."""
        bias, attributes = self.inputs.attention_bias, self.node.attributes
        causal, window = bool(attributes.get_int("causal", 1)), attributes.get_int("window")
        dtype, past, positions = dtype_of(self.inputs.query), self.past, self.positions
        lengths = self.lengths if past is not None else None

        def make(emit: NodeBuilder) -> ir.Value:
            if past is None or lengths is None:
                slots = cache_forms.key_positions(emit, self.mask, self.form)
                valid = emit("Cast", self.mask, to=ir.DataType.BOOL)
            else:
                capacity = emit("Squeeze", emit("Shape", past, start=2, end=3))
                slots = emit(
                    "Unsqueeze", emit("Range", emit.constant(0), capacity, emit.constant(1)), emit.constant([0])
                )
                valid = emit("Less", slots, emit("Unsqueeze", lengths, emit.constant([1])))
            seen = visible_keys(emit, valid, positions, slots, self.node, self.form)
            rows = emit("Concat", emit.constant([1]), self._new(emit), emit.constant([1]), axis=0)
            seen = emit("Unsqueeze", seen if causal or window else emit("Expand", seen, rows), emit.constant([1]))
            # The mask is added to the scores: with a past, onnxruntime takes twice as long for a mask of bools.
            added = emit.constant(0.0, dtype)
            if bias is not None:
                added = bias if past is None else _to_capacity(emit, bias, past)
            return emit("Where", seen, added, emit.constant(float("-inf"), dtype))

        return self._once(("added", self.mask, bias, causal, window, dtype), make)

    def _new(self, emit: NodeBuilder) -> ir.Value:
        """S as int64 [1]."""
        return length_of(emit, self.node, self.inputs["query"])

    def _once(self, key: Hashable, make: Callable[[NodeBuilder], ir.Value]) -> ir.Value:
        if key not in self.values:
            emit = NodeBuilder(f"attention/{len(self.values)}", SHARED_ORIGIN)
            self.values[key] = make(emit)
            self.model.graph.insert_before(self.node, emit.nodes)
        return self.values[key]


def _to_capacity(emit: NodeBuilder, bias: ir.Value, past: ir.Value) -> ir.Value:
    """Pad a bias [B or 1, H or 1, S, T] to all slots of the cache; those behind T are hidden in any case."""
    room = emit("Sub", emit("Shape", past, start=2, end=3), emit("Shape", bias, start=3, end=4))
    return emit("Pad", bias, emit("Concat", emit.constant([0] * 7), room, axis=0))


def _emit_attention(node: ir.Node, shared: _Shared) -> None:
    inputs, attributes, added, positions = shared.inputs, node.attributes, shared.added, shared.positions
    heads, kv_heads, head_dim = attributes.get_int("num_heads"), attributes.get_int("num_kv_heads"), head_dim_of(node)
    slots = None if shared.past is None else (shared.first_slots, shared.lengths)

    emit = NodeBuilder.replacing(node, "emitted by lower/standard")
    query, key, value = split_packed(emit, node)
    if inputs.cos is not None:
        tables, interleaved = (inputs.cos, inputs["sin"]), attributes.get_int("rotary_interleaved")
        query, key = (
            rotate(emit, each, positions, tables, count, interleaved)
            for each, count in ((query, heads), (key, kv_heads))
        )
    options: dict[str, Any] = {"scale": attributes.get_float("scale"), "softcap": attributes.get_float("softcap")}
    if slots is not None:
        first, lengths = slots
        query, key, value = (
            _heads_first(emit, each, count, head_dim)
            for each, count in ((query, heads), (key, kv_heads), (value, kv_heads))
        )
        present_key = emit("TensorScatter", inputs.past_key, key, first, axis=2)
        present_value = emit("TensorScatter", inputs.past_value, value, first, axis=2)
        attended = emit("Attention", query, present_key, present_value, added, None, None, lengths, **options)
        rows = emit("Transpose", attended, perm=HEADS_FIRST)
        output = emit("Reshape", rows, emit.constant([0, 0, heads * head_dim]))
        replace_node(node, emit, [output, present_key, present_value])
        return
    options |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    if producer(value, "Reshape") is not None:
        # Shape inference takes the width of a value that was reshaped, such as a normed one, for unknown, and then
        # refuses the graph: state it.
        value = emit("Reshape", value, emit.constant([0, 0, kv_heads * head_dim]))
    if inputs.past_key is not None:
        past = inputs.past_key, inputs.past_value
        outputs = emit.many("Attention", query, key, value, added, *past, outputs=3, **options)
    else:
        output = emit("Attention", query, key, value, added, **options)
        outputs = [output, *(_heads_first(emit, each, kv_heads, head_dim) for each in (key, value))]
    replace_node(node, emit, outputs)


def _emit_shared_attention(node: ir.Node, shared: _Shared) -> None:
    inputs, attributes, added, positions = shared.inputs, node.attributes, shared.added, shared.positions
    heads, lengths = attributes.get_int("num_heads"), None if shared.past is None else shared.lengths
    emit, query = NodeBuilder.replacing(node, "emitted by lower/standard"), inputs["query"]
    if inputs.cos is not None:
        interleaved = attributes.get_int("rotary_interleaved")
        query = rotate(emit, query, positions, (inputs.cos, inputs["sin"]), heads, interleaved)
    query = _heads_first(emit, query, heads, head_dim_of(node))
    options: dict[str, Any] = {"scale": attributes.get_float("scale"), "softcap": attributes.get_float("softcap")}
    counted = [] if lengths is None else [None, None, lengths]
    attended = emit("Attention", query, inputs.key, inputs.value, added, *counted, **options)
    rows = emit("Transpose", attended, perm=HEADS_FIRST)
    replace_node(node, emit, [emit("Reshape", rows, emit.constant([0, 0, heads * head_dim_of(node)]))])


def _heads_first(emit: NodeBuilder, x: ir.Value, heads: int, head_dim: int) -> ir.Value:
    """[B, S, H·D] → [B, H, S, D]."""
    return emit("Transpose", emit("Reshape", x, emit.constant([0, 0, heads, head_dim])), perm=HEADS_FIRST)
