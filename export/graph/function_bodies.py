"""What each canonical op computes, in ONNX primitives of opset 18.

A lowering that has no kernel for an op, or none that fits, puts the body in its place: slower, and always right. Bodies
are also how passes are tested: a graph before and after a pass, both written out, must agree.

Each function takes an `NodeBuilder`, the op's node and the form of the graph's caches, emits the body and returns the
values of the node's outputs.
"""

from collections.abc import Callable, Sequence

import onnx_ir as ir

from edgeformer.contract import CacheForm
from edgeformer.export.graph import cache_forms
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of, head_dim_of
from edgeformer.export.graph.pass_report import PassReport

Outputs = Sequence[ir.Value]


def rms_norm(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """x / sqrt(mean(x²) + ε) · weight."""
    x, weight = [*node.inputs, None][:2]
    return [_rms_norm(emit, x, weight, node)]


def skip_rms_norm(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """rms_norm(x + skip), x + skip."""
    x, skip, weight = node.inputs
    total = emit("Add", x, skip)
    total.dtype = dtype_of(node.outputs[1])
    return [_rms_norm(emit, total, weight, node), total]


def skip_layer_norm(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """layer_norm(x + skip), x + skip."""
    x, skip, weight, bias = [*node.inputs, None][:4]
    total = emit("Add", x, skip)
    total.dtype = dtype_of(node.outputs[1])
    epsilon = emit.constant(node.attributes.get_float("epsilon"), dtype_of(x))
    centred = emit("Sub", total, emit("ReduceMean", total, emit.constant([-1]), keepdims=1))
    variance = emit("ReduceMean", emit("Mul", centred, centred), emit.constant([-1]), keepdims=1)
    normed = emit("Mul", emit("Div", centred, emit("Sqrt", emit("Add", variance, epsilon))), weight)
    return [normed if bias is None else emit("Add", normed, bias), total]


def _rms_norm(emit: NodeBuilder, x: ir.Value | None, weight: ir.Value | None, node: ir.Node) -> ir.Value:
    epsilon = emit.constant(node.attributes.get_float("epsilon"), dtype_of(x))
    mean_square = emit("ReduceMean", emit("Mul", x, x), emit.constant([-1]), keepdims=1)
    normed = emit("Div", x, emit("Sqrt", emit("Add", mean_square, epsilon)))
    return normed if weight is None else emit("Mul", normed, weight)


def token_positions(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """max(length − S, 0) + [0 … S)."""
    attention_mask, input_ids = node.inputs
    assert attention_mask is not None
    return [cache_forms.token_positions(emit, attention_mask, length_of(emit, node, input_ids), form)]


def key_positions(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """[0 … T)."""
    assert node.inputs[0] is not None
    return [cache_forms.key_positions(emit, node.inputs[0], form)]


def rotary_embedding(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """Rotate the leading elements of each head of x [B, S, H·D]."""
    x, positions, cos, sin = node.inputs
    num_heads = node.attributes.get_int("num_heads")
    heads = emit("Reshape", x, emit.constant([0, 0, num_heads, -1]))  # [B, S, H, D]
    interleaved = bool(node.attributes.get_int("interleaved"))
    width = dim(x, -1) // num_heads
    turned = _rotate(emit, heads, width, positions, cos, sin, interleaved)
    return [emit("Reshape", turned, emit.constant([0, 0, -1]))]


def _rotate(
    emit: NodeBuilder,
    heads: ir.Value,
    width: int,
    positions: ir.Value | None,
    cos: ir.Value | None,
    sin: ir.Value | None,
    interleaved: bool,
) -> ir.Value:
    """heads [B, S, H, width]; cos and sin [C, R/2]."""
    half = dim(cos, -1)
    c = emit("Unsqueeze", emit("Gather", cos, positions, axis=0), emit.constant([2]))  # [B, S, 1, R/2]
    s = emit("Unsqueeze", emit("Gather", sin, positions, axis=0), emit.constant([2]))
    turning = _slice(emit, heads, 0, 2 * half, axis=3)
    if interleaved:
        a, b = (_slice(emit, turning, first, 2 * half, axis=3, step=2) for first in (0, 1))
    else:
        a, b = (_slice(emit, turning, first, first + half, axis=3) for first in (0, half))
    turned_a = emit("Sub", emit("Mul", a, c), emit("Mul", b, s))
    turned_b = emit("Add", emit("Mul", b, c), emit("Mul", a, s))
    if interleaved:
        axis = emit.constant([4])
        pairs = emit("Concat", emit("Unsqueeze", turned_a, axis), emit("Unsqueeze", turned_b, axis), axis=4)
        turned = emit("Reshape", pairs, emit.constant([0, 0, 0, 2 * half]))
    else:
        turned = emit("Concat", turned_a, turned_b, axis=3)
    if width == 2 * half:
        return turned
    return emit("Concat", turned, _slice(emit, heads, 2 * half, width, axis=3), axis=3)


def group_query_attention(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """Write new keys and values into the cache, then softmax(cap(q·kᵀ·scale) + bias)·v."""
    inputs = [*node.inputs, *[None] * 11]
    past_key, past_value, attention_mask, cos, sin, bias, sinks, relations = inputs[3:11]
    assert attention_mask is not None
    num_heads, kv_heads = node.attributes.get_int("num_heads"), node.attributes.get_int("num_kv_heads")
    head_dim, dtype = head_dim_of(node), dtype_of(node.inputs[0])
    query, key, value = split_packed(emit, node)

    new = length_of(emit, node, node.inputs[0])  # [1]
    total = emit("Shape", attention_mask, start=1, end=2)  # [1]
    positions = cache_forms.token_positions(emit, attention_mask, new, form)  # [B, S]
    q = emit("Reshape", query, emit.constant([0, 0, num_heads, head_dim]))  # [B, S, H, D]
    k = emit("Reshape", key, emit.constant([0, 0, kv_heads, head_dim]))  # [B, S, K, D]
    v = emit("Reshape", value, emit.constant([0, 0, kv_heads, head_dim]))
    if cos is not None:
        interleaved = bool(node.attributes.get_int("rotary_interleaved"))
        q, k = (_rotate(emit, heads, head_dim, positions, cos, sin, interleaved) for heads in (q, k))

    present_key = keys = emit("Transpose", k, perm=[0, 2, 1, 3])  # [B, K, S, D]
    present_value = values = emit("Transpose", v, perm=[0, 2, 1, 3])
    if past_key is not None and past_value is not None:
        present_key = keys = cache_forms.store(emit, past_key, keys, positions, total, form)  # [B, K, C, D]
        present_value = values = cache_forms.store(emit, past_value, values, positions, total, form)
        if form != "dynamic":
            keys = _slice(emit, present_key, 0, total, axis=2)  # [B, K, T, D]
            values = _slice(emit, present_value, 0, total, axis=2)

    columns = cache_forms.key_positions(emit, attention_mask, form)  # [B, T]
    valid = emit("Cast", attention_mask, to=ir.DataType.BOOL)  # [B, T]
    # What was never written may be NaN, padding may overflow, and 0 · NaN is NaN.
    values = emit("Where", emit("Unsqueeze", valid, emit.constant([1, 3])), values, emit.constant(0.0, dtype))

    group = num_heads // kv_heads
    q = emit("Mul", q, emit.constant(node.attributes.get_float("scale"), dtype))
    q = emit("Reshape", q, emit.constant([0, 0, kv_heads, group, head_dim]))  # [B, S, K, G, D]
    q = emit("Transpose", q, perm=[0, 2, 3, 1, 4])  # [B, K, G, S, D]
    keys = emit("Unsqueeze", emit("Transpose", keys, perm=[0, 1, 3, 2]), emit.constant([2]))  # [B, K, 1, D, T]
    scores = emit("MatMul", q, keys)  # [B, K, G, S, T]
    softcap = node.attributes.get_float("softcap")
    if softcap:
        cap = emit.constant(softcap, dtype)
        scores = emit("Mul", emit("Tanh", emit("Div", scores, cap)), cap)
    if bias is not None:
        scores = emit("Add", scores, _by_group(emit, bias, kv_heads, group))
    causal, window = bool(node.attributes.get_int("causal")), node.attributes.get_int("window")
    seen = visible_keys(emit, valid, positions, columns, causal, window, form)
    visible = emit("Unsqueeze", seen, emit.constant([1, 2]))
    scores = emit("Where", visible, scores, emit.constant(float("-inf"), dtype))  # [B, K, G, S, T]
    weights = _softmax(emit, scores, sinks, kv_heads, group)
    output = emit("MatMul", weights, emit("Unsqueeze", values, emit.constant([2])))  # [B, K, G, S, D]
    output = emit("Transpose", output, perm=[0, 3, 1, 2, 4])  # [B, S, K, G, D]
    output = emit("Reshape", output, emit.constant([0, 0, num_heads * head_dim]))
    if relations is not None:
        related = _related_values(emit, weights, relations, positions, columns)  # [B, S, K, G, D]
        output = emit("Add", output, emit("Reshape", related, emit.constant([0, 0, num_heads * head_dim])))
    return [output, present_key, present_value]


def length_of(emit: NodeBuilder, node: ir.Node, value: ir.Value | None) -> ir.Value:
    """The second dimension of one of a node's inputs, int64 [1].

    Read off an input of the graph that has the same, so that what all layers make of it is made once.
    """
    assert value is not None
    size = None if value.shape is None else value.shape[1]
    for each in node.graph.inputs if isinstance(node.graph, ir.Graph) else ():
        if isinstance(size, ir.SymbolicDim) and size.value and each.shape is not None and size in list(each.shape)[1:2]:
            return emit("Shape", each, start=1, end=2)
    return emit("Shape", value, start=1, end=2)


def split_packed(emit: NodeBuilder, node: ir.Node) -> Sequence[ir.Value]:
    """Query [B, S, H·D], key and value [B, S, K·D] of an attention, which may have them in one."""
    query, key, value = node.inputs[:3]
    if key is not None and value is not None and query is not None:
        return query, key, value
    heads, kv_heads = node.attributes.get_int("num_heads"), node.attributes.get_int("num_kv_heads")
    sizes = [count * head_dim_of(node) for count in (heads, kv_heads, kv_heads)]
    return emit.many("Split", query, emit.constant(sizes), outputs=3, axis=-1)


def visible_keys(
    emit: NodeBuilder,
    valid: ir.Value,
    positions: ir.Value,
    columns: ir.Value,
    causal: bool,
    window: int,
    form: CacheForm,
) -> ir.Value:
    """Which keys each query sees: bool [B, S, T], or [B, 1, T] where all see the same.

    valid: bool [B, T], which keys hold tokens; positions int64 [B, S] of the queries, columns int64 [B, T] of the keys.
    """
    tokens = emit("Unsqueeze", valid, emit.constant([1]))  # [B, 1, T]
    if not causal:
        return tokens
    queries, keys = emit("Unsqueeze", positions, emit.constant([2])), emit("Unsqueeze", columns, emit.constant([1]))
    distances = emit("Sub", queries, keys)  # [B, S, T]
    visible = emit("GreaterOrEqual", distances, emit.constant(0))
    if window:
        visible = emit("And", visible, emit("Less", distances, emit.constant(window)))
    # Where slot and position are the same, what is not valid stands behind all queries.
    return emit("And", visible, tokens) if form == "dynamic" else visible


def cross_attention(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """softmax(q·kᵀ·scale)·v, without the padding of the source."""
    query, key, value, mask = node.inputs
    heads, dtype = dim(key, 1), dtype_of(query)
    q = emit("Mul", query, emit.constant(node.attributes.get_float("scale"), dtype))
    q = emit("Reshape", q, emit.constant([0, 0, heads, dim(key, 3)]))
    q = emit("Transpose", q, perm=[0, 2, 1, 3])  # [B, H, S, D]
    scores = emit("MatMul", q, emit("Transpose", key, perm=[0, 1, 3, 2]))  # [B, H, S, T]
    valid = emit("Cast", emit("Unsqueeze", mask, emit.constant([1, 2])), to=ir.DataType.BOOL)  # [B, 1, 1, T]
    scores = emit("Where", valid, scores, emit.constant(float("-inf"), dtype))
    output = emit("MatMul", emit("Softmax", scores, axis=-1), value)  # [B, H, S, D]
    output = emit("Transpose", output, perm=[0, 2, 1, 3])
    return [emit("Reshape", output, emit.constant([0, 0, heads * dim(key, 3)]))]


def _by_group(emit: NodeBuilder, bias: ir.Value, kv_heads: int, group: int) -> ir.Value:
    """Bias [B or 1, H or 1, S, T] as scores are laid out: [B or 1, K or 1, G or 1, S, T]."""
    if dim(bias, 1) == 1:
        return emit("Unsqueeze", bias, emit.constant([2]))
    shape = emit("Shape", bias, start=0, end=1), emit.constant([kv_heads, group]), emit("Shape", bias, start=2, end=4)
    return emit("Reshape", bias, emit("Concat", *shape, axis=0))


def _softmax(emit: NodeBuilder, scores: ir.Value, sinks: ir.Value | None, kv_heads: int, group: int) -> ir.Value:
    """Softmax of [B, K, G, S, T] along T; a sink is one more column, which is dropped after."""
    if sinks is None:
        return emit("Softmax", scores, axis=-1)
    shape = emit("Concat", emit("Shape", scores, start=0, end=4), emit.constant([1]), axis=0)
    column = emit("Expand", emit("Reshape", sinks, emit.constant([1, kv_heads, group, 1, 1])), shape)
    weights = emit("Softmax", emit("Concat", scores, column, axis=-1), axis=-1)
    return _slice(emit, weights, 0, -1, axis=4)


def _related_values(
    emit: NodeBuilder, weights: ir.Value, relations: ir.Value, positions: ir.Value, columns: ir.Value
) -> ir.Value:
    """weights [B, K, G, S, T] times the relation vectors [2k + 1, D] of each pair: [B, S, K, G, D]."""
    reach = (dim(relations, 0) - 1) // 2
    queries, keys = emit("Unsqueeze", positions, emit.constant([2])), emit("Unsqueeze", columns, emit.constant([1]))
    ahead = emit("Sub", keys, queries)  # [B, S, T]
    row = emit("Add", emit("Clip", ahead, emit.constant(-reach), emit.constant(reach)), emit.constant(reach))
    seen = emit("Unsqueeze", emit("Gather", relations, row, axis=0), emit.constant([2]))  # [B, S, 1, T, D]
    return emit("MatMul", emit("Transpose", weights, perm=[0, 3, 1, 2, 4]), seen)


def _slice(
    emit: NodeBuilder, value: ir.Value, start: int, end: int | ir.Value, *, axis: int, step: int = 1
) -> ir.Value:
    end = end if isinstance(end, ir.Value) else emit.constant([end])
    return emit("Slice", value, emit.constant([start]), end, emit.constant([axis]), emit.constant([step]))


FUNCTION_BODIES: dict[str, Callable[[NodeBuilder, ir.Node, CacheForm], Outputs]] = {
    "RMSNorm": rms_norm,
    "SkipRMSNorm": skip_rms_norm,
    "SkipLayerNorm": skip_layer_norm,
    "RotaryEmbedding": rotary_embedding,
    "GroupQueryAttention": group_query_attention,
    "CrossAttention": cross_attention,
    "TokenPositions": token_positions,
    "KeyPositions": key_positions,
}


def decompose(node: ir.Node, form: CacheForm = "any") -> None:
    """Put the body of a canonical op in its place."""
    emit = NodeBuilder(node.name or node.op_type)
    replace_node(node, emit, FUNCTION_BODIES[node.op_type](emit, node, form))


def decompose_all(model: ir.Model, form: CacheForm = "any") -> PassReport:
    """Put bodies in the place of every canonical op: what is left is standard ONNX."""
    report = PassReport("bodies")
    for node in canonical_nodes(model, *FUNCTION_BODIES):
        report.fire(node)
        decompose(node, form)
    model.opset_imports.pop(DOMAIN, None)
    return report
