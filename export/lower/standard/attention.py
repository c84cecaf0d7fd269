"""Self-attention by ONNX's Attention.

    growing   Attention(q, k, v, mask, past) → present: the op puts the new keys and values behind the past
    static    TensorScatter(past, k), TensorScatter(past, v) → present; Attention(q, present, mask, nonpad_kv_seqlen)

What a query sees is said by a mask, made once for all layers with the same window and bias: `is_causal` counts from the
end of the cache, which is wrong for a batch of padded prompts. Requires that there are neither sinks nor relation
vectors, which the op does not know. With a static cache, what lies behind a row's tokens must be finite: the op
multiplies it with zero.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from edgeformer.contract import CacheForm
from edgeformer.export.graph import cache_forms
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import canonical_nodes, dtype_of, head_dim_of
from edgeformer.export.graph.function_bodies import decompose, length_of, split_packed, visible_keys
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.passes import PassReport

HEADS_FIRST = [0, 2, 1, 3]


def lower_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Use the op wherever it can say what ours does."""
    report = PassReport("GroupQueryAttention")
    shared = _Shared(model, lowering.cache_form)
    for node in canonical_nodes(model, "GroupQueryAttention"):
        missing = _unknown(node)
        if missing is not None:
            report.miss(node, f"Attention has no {missing}")
            decompose(node, lowering.cache_form)
            continue
        report.fire(node)
        _emit_attention(node, shared)
    return report


def _unknown(node: ir.Node) -> str | None:
    inputs = [*node.inputs, *[None] * 11]
    return "sinks" if inputs[9] is not None else "relation vectors" if inputs[10] is not None else None


@dataclass
class _Shared:
    """What layers have in common, made before the first of them: positions, lengths, masks."""

    model: ir.Model
    form: CacheForm
    made: dict[Hashable, ir.Value] = field(default_factory=dict)

    def positions(self, node: ir.Node) -> ir.Value:
        """Of the queries: int64 [B, S]."""
        mask = _mask_of(node)
        return self._once(
            node, ("positions", mask), lambda emit: cache_forms.token_positions(emit, mask, _new(emit, node), self.form)
        )

    def first_slots(self, node: ir.Node) -> ir.Value:
        """Where the first new token of each row is written: int64 [B]."""
        positions = self.positions(node)
        return self._once(
            node, ("first", _mask_of(node)), lambda emit: emit("Gather", positions, emit.constant(0), axis=1)
        )

    def lengths(self, node: ir.Node) -> ir.Value:
        """Tokens of each row: int64 [B]."""
        mask = _mask_of(node)
        return self._once(node, ("lengths", mask), lambda emit: emit("ReduceSum", mask, emit.constant([1]), keepdims=0))

    def visible(self, node: ir.Node) -> ir.Value:
        """What is added to the scores: the bias, or −inf for what is not seen: [B, 1 or H, S, keys], of all slots."""
        bias = node.inputs[8] if len(node.inputs) > 8 else None
        causal, window = bool(node.attributes.get_int("causal")), node.attributes.get_int("window")
        key = "visible", _mask_of(node), bias, causal, window, dtype_of(node.inputs[0])
        positions = self.positions(node)
        past = node.inputs[3] if self.form == "static" else None
        lengths = self.lengths(node) if past is not None else None

        def make(emit: NodeBuilder) -> ir.Value:
            mask = _mask_of(node)
            if past is None or lengths is None:
                slots = cache_forms.key_positions(emit, mask, self.form)
                valid = emit("Cast", mask, to=ir.DataType.BOOL)
            else:
                capacity = emit("Squeeze", emit("Shape", past, start=2, end=3))
                slots = emit(
                    "Unsqueeze", emit("Range", emit.constant(0), capacity, emit.constant(1)), emit.constant([0])
                )
                valid = emit("Less", slots, emit("Unsqueeze", lengths, emit.constant([1])))
            seen = visible_keys(emit, valid, positions, slots, causal, window, self.form)
            rows = emit("Concat", emit.constant([1]), _new(emit, node), emit.constant([1]), axis=0)
            seen = emit("Unsqueeze", seen if causal else emit("Expand", seen, rows), emit.constant([1]))
            # Added to the scores, since onnxruntime takes twice as long for a mask of bools where there is a past.
            dtype = dtype_of(node.inputs[0])
            added = emit.constant(0.0, dtype)
            if bias is not None:
                added = bias if past is None else _to_capacity(emit, bias, past)
            return emit("Where", seen, added, emit.constant(float("-inf"), dtype))

        return self._once(node, key, make)

    def _once(self, node: ir.Node, key: Hashable, make: Callable[[NodeBuilder], ir.Value]) -> ir.Value:
        if key not in self.made:
            emit = NodeBuilder(f"attention/{len(self.made)}")
            self.made[key] = make(emit)
            self.model.graph.insert_before(node, emit.nodes)
        return self.made[key]


def _mask_of(node: ir.Node) -> ir.Value:
    mask = node.inputs[5]
    assert mask is not None
    return mask


def _new(emit: NodeBuilder, node: ir.Node) -> ir.Value:
    """S as int64 [1]."""
    return length_of(emit, node, node.inputs[0])


def _to_capacity(emit: NodeBuilder, bias: ir.Value, past: ir.Value) -> ir.Value:
    """Bias [B or 1, H or 1, S, T] with columns for all slots of the cache; those behind T are hidden in any case."""
    room = emit("Sub", emit("Shape", past, start=2, end=3), emit("Shape", bias, start=3, end=4))
    return emit("Pad", bias, emit("Concat", emit.constant([0] * 7), room, axis=0))


def _emit_attention(node: ir.Node, shared: _Shared) -> None:
    visible = shared.visible(node)
    inputs = [*node.inputs, *[None] * 8][:8]
    past_key, past_value, cos, sin = inputs[3], inputs[4], inputs[6], inputs[7]
    attributes = node.attributes
    heads, kv_heads = attributes.get_int("num_heads"), attributes.get_int("num_kv_heads")
    positions = shared.positions(node)
    in_place = shared.form == "static" and past_key is not None
    slots = (shared.first_slots(node), shared.lengths(node)) if in_place else None

    emit = NodeBuilder(node.name or "")
    query, key, value = split_packed(emit, node)
    if cos is not None:
        interleaved = attributes.get_int("rotary_interleaved")
        query, key = (
            rotate(emit, each, positions, cos, sin, count, interleaved)
            for each, count in ((query, heads), (key, kv_heads))
        )
    options: dict[str, Any] = {"scale": attributes.get_float("scale"), "softcap": attributes.get_float("softcap")}
    if slots is not None:
        first, lengths = slots
        query, key, value = (
            _heads_first(emit, each, count, head_dim_of(node))
            for each, count in ((query, heads), (key, kv_heads), (value, kv_heads))
        )
        present_key = emit("TensorScatter", past_key, key, first, axis=2)
        present_value = emit("TensorScatter", past_value, value, first, axis=2)
        attended = emit("Attention", query, present_key, present_value, visible, None, None, lengths, **options)
        rows = emit("Transpose", attended, perm=HEADS_FIRST)
        output = emit("Reshape", rows, emit.constant([0, 0, heads * head_dim_of(node)]))
    else:
        options |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
        if past_key is not None:
            output, present_key, present_value = emit.many(
                "Attention", query, key, value, visible, past_key, past_value, outputs=3, **options
            )
        else:
            output = emit("Attention", query, key, value, visible, **options)
            present_key, present_value = (
                _heads_first(emit, each, kv_heads, head_dim_of(node)) for each in (key, value)
            )
    replace_node(node, emit, [output, present_key, present_value])


def rotate(
    emit: NodeBuilder,
    x: ir.Value,
    positions: ir.Value | None,
    cos: ir.Value | None,
    sin: ir.Value | None,
    num_heads: int,
    interleaved: int,
) -> ir.Value:
    """x [B, S, H·D], its heads turned by ONNX's RotaryEmbedding."""
    assert cos is not None and cos.shape is not None
    width = 2 * int(cos.shape[-1])  # type: ignore[arg-type]
    return emit(
        "RotaryEmbedding", x, cos, sin, positions,
        num_heads=num_heads, interleaved=interleaved, rotary_embedding_dim=width,
    )  # fmt: skip


def _heads_first(emit: NodeBuilder, x: ir.Value, heads: int, head_dim: int) -> ir.Value:
    """[B, S, H·D] → [B, H, S, D]."""
    return emit("Transpose", emit("Reshape", x, emit.constant([0, 0, heads, head_dim])), perm=HEADS_FIRST)
