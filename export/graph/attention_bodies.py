"""Function bodies of attention: rotation, self-attention, attention to an earlier layer's keys, cross-attention.

They are in primitives of opset 18; `function_bodies.py` says what bodies are for, and which letters name dimensions.
"""

from collections.abc import Sequence

import onnx_ir as ir

from edgeformer.contract.tensors import CacheForm
from edgeformer.export.graph import cache_forms
from edgeformer.export.graph.builder import NodeBuilder, Outputs
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import dim, dtype_of, head_dim_of


def rotary_embedding(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """Rotate the first R elements of each head of x [B, S, H·D]."""
    inputs, num_heads = canonical_inputs(node), node.attributes.get_int("num_heads")
    heads = emit("Reshape", inputs["x"], emit.constant([0, 0, num_heads, -1]))  # [B, S, H, D]
    width, interleaved = dim(inputs["x"], -1) // num_heads, bool(node.attributes.get_int("interleaved"))
    rotated = _rotate(emit, heads, width, inputs["positions"], (inputs["cos"], inputs["sin"]), interleaved)
    return [emit("Reshape", rotated, emit.constant([0, 0, -1]))]


def _rotate(
    emit: NodeBuilder,
    heads: ir.Value,
    width: int,
    positions: ir.Value,
    tables: tuple[ir.Value, ir.Value],
    interleaved: bool,
) -> ir.Value:
    """Rotate heads [B, S, H, width]; tables: cos and sin [positions, R/2]."""
    half = dim(tables[0], -1)
    cos, sin = (
        emit("Unsqueeze", emit("Gather", table, positions, axis=0), emit.constant([2])) for table in tables
    )  # [B, S, 1, R/2]
    rotary = _slice(emit, heads, 0, 2 * half, axis=3)
    if interleaved:
        a, b = (_slice(emit, rotary, first, 2 * half, axis=3, step=2) for first in (0, 1))
    else:
        a, b = (_slice(emit, rotary, first, first + half, axis=3) for first in (0, half))
    rotated_a = emit("Sub", emit("Mul", a, cos), emit("Mul", b, sin))
    rotated_b = emit("Add", emit("Mul", b, cos), emit("Mul", a, sin))
    if interleaved:
        axis = emit.constant([4])
        pairs = emit("Concat", emit("Unsqueeze", rotated_a, axis), emit("Unsqueeze", rotated_b, axis), axis=4)
        rotated = emit("Reshape", pairs, emit.constant([0, 0, 0, 2 * half]))
    else:
        rotated = emit("Concat", rotated_a, rotated_b, axis=3)
    if width == 2 * half:
        return rotated
    return emit("Concat", rotated, _slice(emit, heads, 2 * half, width, axis=3), axis=3)


def group_query_attention(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """Write the new keys and values into the cache, then compute softmax(cap(q·kᵀ·scale) + bias)·v."""
    inputs, mask = canonical_inputs(node), canonical_inputs(node)["attention_mask"]
    query, key, value = split_packed(emit, node)
    new = length_of(emit, node, inputs["query"])
    total = emit("Shape", mask, start=1, end=2)  # [1]
    positions = cache_forms.token_positions(emit, mask, new, form)  # [B, S]
    kv_heads = node.attributes.get_int("num_kv_heads")
    q = _rotated_heads(emit, node, query, node.attributes.get_int("num_heads"), positions)
    k = _rotated_heads(emit, node, key, kv_heads, positions)
    v = emit("Reshape", value, emit.constant([0, 0, kv_heads, head_dim_of(node)]))

    present_key = keys = emit("Transpose", k, perm=[0, 2, 1, 3])  # [B, K, S, D]
    present_value = values = emit("Transpose", v, perm=[0, 2, 1, 3])
    if inputs.past_key is not None and inputs.past_value is not None:
        present_key = keys = cache_forms.store(emit, inputs.past_key, keys, positions, total, form)  # [B, K, C, D]
        present_value = values = cache_forms.store(emit, inputs.past_value, values, positions, total, form)
        if form != "dynamic":
            keys = _slice(emit, present_key, 0, total, axis=2)  # [B, K, T, D]
            values = _slice(emit, present_value, 0, total, axis=2)
    output = _attend(emit, node, q, (keys, values), positions, form)
    return [output, present_key, present_value]


def shared_attention(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """softmax(cap(q·kᵀ·scale) + bias)·v with the keys and values that an earlier layer returned."""
    inputs, mask = canonical_inputs(node), canonical_inputs(node)["attention_mask"]
    positions = cache_forms.token_positions(emit, mask, length_of(emit, node, inputs["query"]), form)  # [B, S]
    q = _rotated_heads(emit, node, inputs["query"], node.attributes.get_int("num_heads"), positions)
    keys, values = inputs["key"], inputs["value"]
    if form != "dynamic":
        total = emit("Shape", mask, start=1, end=2)
        keys, values = (_slice(emit, each, 0, total, axis=2) for each in (keys, values))  # [B, K, T, D]
    return [_attend(emit, node, q, (keys, values), positions, form)]


def _attend(
    emit: NodeBuilder,
    node: ir.Node,
    q: ir.Value,
    cache: tuple[ir.Value, ir.Value],
    positions: ir.Value,
    form: CacheForm,
) -> ir.Value:
    """Return the output [B, S, H·D] of queries [B, S, H, D] at positions [B, S]; cache: key and value [B, K, T, D]."""
    inputs, (keys, values) = canonical_inputs(node), cache
    mask, dtype = inputs["attention_mask"], dtype_of(inputs.query)
    width = node.attributes.get_int("num_heads") * head_dim_of(node)
    columns = cache_forms.key_positions(emit, mask, form)  # [B, T]
    valid = emit("Cast", mask, to=ir.DataType.BOOL)  # [B, T]
    # Slots that were never written may hold NaN and padding may overflow, and 0 · NaN is NaN.
    values = emit("Where", emit("Unsqueeze", valid, emit.constant([1, 3])), values, emit.constant(0.0, dtype))

    scores = _scores(emit, node, q, keys)  # [B, K, G, S, T]
    visible = visible_keys(emit, valid, positions, columns, node, form)
    visible = emit("Unsqueeze", visible, emit.constant([1, 2]))
    scores = emit("Where", visible, scores, emit.constant(float("-inf"), dtype))
    weights = _softmax(emit, node, scores, inputs.sinks)
    output = emit("MatMul", weights, emit("Unsqueeze", values, emit.constant([2])))  # [B, K, G, S, D]
    output = emit("Transpose", output, perm=[0, 3, 1, 2, 4])  # [B, S, K, G, D]
    output = emit("Reshape", output, emit.constant([0, 0, width]))
    relations = inputs.value_relations if node.op_type == "GroupQueryAttention" else None
    if relations is None:
        return output
    related = _related_values(emit, weights, relations, positions, columns)  # [B, S, K, G, D]
    return emit("Add", output, emit("Reshape", related, emit.constant([0, 0, width])))


def _rotated_heads(emit: NodeBuilder, node: ir.Node, projected: ir.Value, count: int, positions: ir.Value) -> ir.Value:
    """Return queries or keys [B, S, count·D] as [B, S, count, D], rotated where the op has tables for it."""
    inputs, head_dim = canonical_inputs(node), head_dim_of(node)
    heads = emit("Reshape", projected, emit.constant([0, 0, count, head_dim]))
    if inputs.cos is None:
        return heads
    interleaved = bool(node.attributes.get_int("rotary_interleaved"))
    return _rotate(emit, heads, head_dim, positions, (inputs.cos, inputs["sin"]), interleaved)


def _scores(emit: NodeBuilder, node: ir.Node, q: ir.Value, keys: ir.Value) -> ir.Value:
    """cap(q·kᵀ·scale) + bias: [B, K, G, S, T] of q [B, S, H, D] and keys [B, K, T, D]."""
    attributes, inputs = node.attributes, canonical_inputs(node)
    bias, dtype = inputs.attention_bias, dtype_of(inputs.query)
    kv_heads, group = _groups(node)
    q = emit("Mul", q, emit.constant(attributes.get_float("scale"), dtype))
    q = emit("Reshape", q, emit.constant([0, 0, kv_heads, group, head_dim_of(node)]))  # [B, S, K, G, D]
    q = emit("Transpose", q, perm=[0, 2, 3, 1, 4])  # [B, K, G, S, D]
    keys = emit("Unsqueeze", emit("Transpose", keys, perm=[0, 1, 3, 2]), emit.constant([2]))  # [B, K, 1, D, T]
    scores = _capped(emit, node, emit("MatMul", q, keys), dtype)
    if bias is None:
        return scores
    if dim(bias, 1) == 1:  # [B or 1, 1, S, T] → [B or 1, 1, 1, S, T]
        return emit("Add", scores, emit("Unsqueeze", bias, emit.constant([2])))
    shape = emit("Shape", bias, start=0, end=1), emit.constant([kv_heads, group]), emit("Shape", bias, start=2, end=4)
    return emit("Add", scores, emit("Reshape", bias, emit("Concat", *shape, axis=0)))


def _groups(node: ir.Node) -> tuple[int, int]:
    """K and G of an attention."""
    kv_heads = node.attributes.get_int("num_kv_heads")
    return kv_heads, node.attributes.get_int("num_heads") // kv_heads


def length_of(emit: NodeBuilder, node: ir.Node, value: ir.Value) -> ir.Value:
    """Return the second dimension of one of a node's inputs, int64 [1].

    It is read from a graph input that has the same dimension, so that all layers share what is computed from it.
    """
    size = None if value.shape is None else value.shape[1]
    for each in node.graph.inputs if isinstance(node.graph, ir.Graph) else ():
        if isinstance(size, ir.SymbolicDim) and size.value and each.shape is not None and size in list(each.shape)[1:2]:
            return emit("Shape", each, start=1, end=2)
    return emit("Shape", value, start=1, end=2)


def split_packed(emit: NodeBuilder, node: ir.Node) -> Sequence[ir.Value]:
    """Return query [B, S, H·D], key and value [B, S, K·D] of an attention, which may have them packed in one."""
    inputs = canonical_inputs(node)
    if inputs.key is not None and inputs.value is not None:
        return inputs["query"], inputs.key, inputs.value
    counts = [node.attributes.get_int(name) for name in ("num_heads", "num_kv_heads", "num_kv_heads")]
    sizes = [count * head_dim_of(node) for count in counts]
    return emit.many("Split", inputs.query, emit.constant(sizes), outputs=3, axis=-1)


def visible_keys(
    emit: NodeBuilder, valid: ir.Value, positions: ir.Value, columns: ir.Value, node: ir.Node, form: CacheForm
) -> ir.Value:
    """Return which keys each query of an attention sees: bool [B, S, T], or [B, 1, T] where all see the same.

    valid: bool [B, T], the keys that hold tokens; positions: int64 [B, S], of the queries; columns: int64 [B, T], of
    the keys.
    """
    window, causal = node.attributes.get_int("window"), bool(node.attributes.get_int("causal", 1))
    tokens = emit("Unsqueeze", valid, emit.constant([1]))  # [B, 1, T]
    if not causal and not window:
        return tokens
    queries, keys = emit("Unsqueeze", positions, emit.constant([2])), emit("Unsqueeze", columns, emit.constant([1]))
    distances = emit("Sub", queries, keys)  # [B, S, T]
    if not causal:
        return emit("And", emit("Less", distances, emit.constant(window)), tokens)
    visible = emit("GreaterOrEqual", distances, emit.constant(0))
    if window:
        visible = emit("And", visible, emit("Less", distances, emit.constant(window)))
    # Where slot and position are equal, slots without a token are behind all queries.
    return emit("And", visible, tokens) if form == "dynamic" else visible


def cross_attention(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """softmax(cap(q·kᵀ·scale))·v, without the padding of the encoder's input; the softmax, too, for two outputs."""
    inputs = canonical_inputs(node)
    key, mask = inputs["key"], inputs["attention_mask"]
    heads, dtype = dim(key, 1), dtype_of(inputs.query)
    q = emit("Mul", inputs.query, emit.constant(node.attributes.get_float("scale"), dtype))
    q = emit("Reshape", q, emit.constant([0, 0, heads, dim(key, 3)]))
    q = emit("Transpose", q, perm=[0, 2, 1, 3])  # [B, H, S, D]
    scores = emit("MatMul", q, emit("Transpose", key, perm=[0, 1, 3, 2]))  # [B, H, S, T]
    scores = _capped(emit, node, scores, dtype)
    valid = emit("Cast", emit("Unsqueeze", mask, emit.constant([1, 2])), to=ir.DataType.BOOL)  # [B, 1, 1, T]
    scores = emit("Where", valid, scores, emit.constant(float("-inf"), dtype))
    weights = emit("Softmax", scores, axis=-1)
    output = emit("Transpose", emit("MatMul", weights, inputs.value), perm=[0, 2, 1, 3])  # [B, S, H, D]
    return [emit("Reshape", output, emit.constant([0, 0, heads * dim(key, 3)])), weights][: len(node.outputs)]


def _capped(emit: NodeBuilder, node: ir.Node, scores: ir.Value, dtype: ir.DataType) -> ir.Value:
    """softcap · tanh(scores / softcap) by the attribute of an attention; the scores themselves for 0."""
    softcap = node.attributes.get_float("softcap")
    if not softcap:
        return scores
    cap = emit.constant(softcap, dtype)
    return emit("Mul", emit("Tanh", emit("Div", scores, cap)), cap)


def _softmax(emit: NodeBuilder, node: ir.Node, scores: ir.Value, sinks: ir.Value | None) -> ir.Value:
    """Softmax of [B, K, G, S, T] along T; a sink is one more column, which is dropped afterwards."""
    if sinks is None:
        return emit("Softmax", scores, axis=-1)
    shape = emit("Concat", emit("Shape", scores, start=0, end=4), emit.constant([1]), axis=0)
    column = emit("Expand", emit("Reshape", sinks, emit.constant([1, *_groups(node), 1, 1])), shape)
    weights = emit("Softmax", emit("Concat", scores, column, axis=-1), axis=-1)
    return _slice(emit, weights, 0, -1, axis=4)


def _related_values(
    emit: NodeBuilder, weights: ir.Value, relations: ir.Value, positions: ir.Value, columns: ir.Value
) -> ir.Value:
    """Weights [B, K, G, S, T] times the relation vectors [2k + 1, D] of each query and key: [B, S, K, G, D]."""
    reach = (dim(relations, 0) - 1) // 2
    queries, keys = emit("Unsqueeze", positions, emit.constant([2])), emit("Unsqueeze", columns, emit.constant([1]))
    distances = emit("Sub", keys, queries)  # [B, S, T]
    row = emit("Add", emit("Clip", distances, emit.constant(-reach), emit.constant(reach)), emit.constant(reach))
    vectors = emit("Unsqueeze", emit("Gather", relations, row, axis=0), emit.constant([2]))  # [B, S, 1, T, D]
    return emit("MatMul", emit("Transpose", weights, perm=[0, 3, 1, 2, 4]), vectors)


def _slice(
    emit: NodeBuilder, value: ir.Value, start: int, end: int | ir.Value, *, axis: int, step: int = 1
) -> ir.Value:
    end = end if isinstance(end, ir.Value) else emit.constant([end])
    return emit("Slice", value, emit.constant([start]), end, emit.constant([axis]), emit.constant([step]))
