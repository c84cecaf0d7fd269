"""Function bodies of a router and of a mixture of experts; see `function_bodies.py`.

Dimensions: N tokens, E hidden, X experts, K experts of each token, F intermediate.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce

import onnx_ir as ir

from edgeformer.contract.tensors import CacheForm
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import dim, dtype_of

Outputs = Sequence[ir.Value]


def expert_router(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """Return the K experts of largest score, and their weights."""
    inputs, attributes = canonical_inputs(node), node.attributes
    logits, dtype = inputs["logits"], dtype_of(inputs.logits)
    count, scoring = attributes.get_int("experts_per_token"), attributes.get_string("scoring")
    if scoring == "sparse_mixer":
        experts, weights = _sparse_mixer(emit, node, logits, count)
    else:
        scores = emit("Softmax", logits, axis=-1) if scoring == "softmax" else emit("Sigmoid", logits)
        groups = attributes.get_int("groups")
        compared = logits if inputs.choice_bias is None and groups == 1 else scores
        if inputs.choice_bias is not None:
            compared = emit("Add", compared, inputs.choice_bias)
        if groups > 1:
            compared = _within_groups(emit, node, compared)
        _, experts = _top_k(emit, compared, count, dtype)
        weights = _weights(emit, node, scores, experts)
    scale = attributes.get_float("scale")
    if scale != 1:
        weights = emit("Mul", weights, emit.constant(scale, dtype))
    if inputs.expert_scale is not None:
        weights = emit("Mul", weights, emit("Gather", inputs.expert_scale, experts, axis=0))
    return [experts, weights]


def _weights(emit: NodeBuilder, node: ir.Node, scores: ir.Value, experts: ir.Value) -> ir.Value:
    """Return the weights [N, K] of the chosen experts int64 [N, K]: their scores [N, X], normalized or not."""
    attributes, logits = node.attributes, canonical_inputs(node)["logits"]
    dtype, normalized = dtype_of(logits), attributes.get_int("normalized")
    epsilon, floor = attributes.get_float("sum_epsilon"), attributes.get_float("sum_floor")
    if normalized and attributes.get_string("scoring") == "softmax" and not epsilon and not floor:
        return emit("Softmax", emit("GatherElements", logits, experts, axis=1), axis=-1)
    weights = emit("GatherElements", scores, experts, axis=1)
    if not normalized:
        return weights
    total = emit("ReduceSum", weights, emit.constant([-1]), keepdims=1)
    total = emit("Add", total, emit.constant(epsilon, dtype)) if epsilon else total
    return emit("Div", weights, emit("Max", total, emit.constant(floor, dtype)) if floor else total)


def _top_k(emit: NodeBuilder, values: ir.Value, count: int, dtype: ir.DataType) -> Sequence[ir.Value]:
    """Return the largest values along the last axis and their places.

    Those in float16 are compared in float32, since ONNX Runtime has no TopK of float16 on the CPU.
    """
    if dtype == ir.DataType.FLOAT16:
        values = emit("Cast", values, to=ir.DataType.FLOAT)
    return emit.many("TopK", values, emit.constant([count]), outputs=2, axis=-1)


def _within_groups(emit: NodeBuilder, node: ir.Node, compared: ir.Value) -> ir.Value:
    """Replace the scores [N, X] of experts by −∞ in all groups but the best ones."""
    attributes, logits = node.attributes, canonical_inputs(node)["logits"]
    groups, dtype = attributes.get_int("groups"), dtype_of(logits)
    grouped = emit("Reshape", compared, emit.constant([0, groups, -1]))  # [N, groups, X / groups]
    largest, _ = _top_k(emit, grouped, 2 if attributes.get_string("group_score") == "top2_sum" else 1, dtype)
    scores = emit("ReduceSum", largest, emit.constant([-1]), keepdims=0)  # [N, groups]
    _, best = emit.many("TopK", scores, emit.constant([attributes.get_int("groups_per_token")]), outputs=2, axis=-1)
    marks = _marks(emit, scores, best, attributes.get_int("groups_per_token"), dtype)
    kept = emit("Unsqueeze", emit("Cast", marks, to=ir.DataType.BOOL), emit.constant([-1]))
    masked = emit("Where", kept, grouped, emit.constant(float("-inf"), dtype))
    return emit("Reshape", masked, emit.constant([0, dim(logits, -1)]))


def _sparse_mixer(emit: NodeBuilder, node: ir.Node, logits: ir.Value, count: int) -> tuple[ir.Value, ir.Value]:
    """Choose one expert after the other, and weigh each among those near it; see `ops.expert_router`."""
    dtype = dtype_of(logits)
    nothing, limit = (emit.constant(each, dtype) for each in (float("-inf"), 2 * node.attributes.get_float("jitter")))
    magnitude, left, ranks, weights = emit("Abs", logits), logits, [], []
    for turn in range(count):
        _, expert = _top_k(emit, left, 1, dtype)  # [N, 1]
        largest = emit("GatherElements", left, expert, axis=1)
        distance = emit("Div", emit("Sub", largest, left), emit("Max", magnitude, largest))
        # The chosen one is near itself by definition, not by its distance: onnxruntime may round one side of it only.
        marks = _marks(emit, logits, expert, 1, dtype)
        itself = emit("Cast", marks, to=ir.DataType.BOOL)
        far = emit("And", emit("Greater", distance, limit), emit("Not", itself))
        near = emit("Where", far, nothing, left)
        weights.append(emit("GatherElements", emit("Softmax", near, axis=-1), expert, axis=1))
        ranks.append(emit("Mul", marks, emit.constant(float(count - turn), dtype)))
        left = emit("Where", itself, nothing, left)
    _, experts = _top_k(emit, reduce(partial(emit, "Add"), ranks), count, dtype)
    return experts, emit("Concat", *weights, axis=-1)


def _marks(emit: NodeBuilder, values: ir.Value, places: ir.Value, count: int, dtype: ir.DataType) -> ir.Value:
    """Return numbers of the shape [N, X] of values: 1 in the columns `places` int64 [N, count] of each row, else 0.

    They are scattered: WebGPU neither compares nor joins int64, nor tells its shape.
    """
    rows = emit("Shape", values, start=0, end=1)
    ones = emit("Expand", emit.constant(1.0, dtype), emit("Concat", rows, emit.constant([count]), axis=0))
    zeros = emit("Expand", emit.constant(0.0, dtype), emit("Shape", values))
    return emit("ScatterElements", zeros, places, ones, axis=1)


def mixture_of_experts(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """Σ weight · network(x) over the chosen experts: a loop over the experts that any token chose.

    In one decode step it runs K times. The weights of an expert are copied out of the stack when its turn comes.
    """
    inputs = canonical_inputs(node)
    x, dtype = inputs["x"], dtype_of(inputs.x)
    used = _used(emit, inputs["experts"], dim(inputs.up, 0))
    count = emit("Squeeze", emit("Shape", used))
    start = emit("ConstantOfShape", emit("Shape", x), value=ir.tensor([0], dtype=dtype))  # [N, E]
    name = f"{node.name or node.op_type}/Loop"
    step, going, before = (
        ir.Value(name=f"{name}/{each}", type=ir.TensorType(kind), shape=ir.Shape(shape))
        for each, kind, shape in (
            ("step", ir.DataType.INT64, []),
            ("going", ir.DataType.BOOL, []),
            ("before", dtype, [None, dim(x, -1)]),
        )
    )
    inner = NodeBuilder(name)
    after = _add_expert(inner, node, inner("Gather", used, step, axis=0), before)
    after.type, after.shape = before.type, before.shape
    goes_on = inner("Identity", going)
    goes_on.type, goes_on.shape = going.type, going.shape
    for each in inner.nodes:  # names of a body must differ from those around it
        for index, output in enumerate(each.outputs):
            output.name = f"{each.name}/{index}"
    body = ir.Graph([step, going, before], [goes_on, after], nodes=inner.nodes, name=name)
    return [emit("Loop", count, None, start, body=body)]


def _used(emit: NodeBuilder, experts: ir.Value, count: int) -> ir.Value:
    """Return the numbers int64 [u], in order, of the experts that any token chose. CUDA has no kernel of Unique."""
    numbers = emit("Reshape", experts, emit.constant([-1]))  # [N · K]
    ones = emit("ConstantOfShape", emit("Shape", numbers), value=ir.tensor([1], dtype=ir.DataType.INT64))
    chosen = emit("ScatterElements", emit.constant([0] * count), numbers, ones, axis=0)  # [X]: 1 or 0
    return emit("Reshape", emit("NonZero", chosen), emit.constant([-1]))


def _add_expert(emit: NodeBuilder, node: ir.Node, expert: ir.Value, before: ir.Value) -> ir.Value:
    """Return the sum [N, E] with the outputs of one expert, int64 [], added for the tokens that chose it."""
    inputs, weighted_input = canonical_inputs(node), node.attributes.get_int("weighted_input")
    chosen = emit("NonZero", emit("Equal", inputs["experts"], expert))  # [2, n]: token, place among its experts
    tokens, places = emit.many("Split", chosen, outputs=2, axis=0, num_outputs=2)
    tokens = emit("Transpose", tokens, perm=[1, 0])  # [n, 1]
    places = emit("Concat", tokens, emit("Transpose", places, perm=[1, 0]), axis=1)  # [n, 2]
    factors = emit("Unsqueeze", emit("GatherND", inputs["weights"], places), emit.constant([1]))  # [n, 1]
    rows = emit("GatherND", inputs["x"], tokens)  # [n, E]
    rows = emit("Mul", rows, factors) if weighted_input else rows

    def linear(name: str, x: ir.Value) -> ir.Value:
        weight = emit("Gather", inputs[name], expert, axis=0)
        bias = getattr(inputs, f"{name}_bias")
        return emit("Gemm", x, weight, *([] if bias is None else [emit("Gather", bias, expert, axis=0)]), transB=1)

    result = linear(
        "down", inner_states(emit, node, linear("up", rows), None if inputs.gate is None else linear("gate", rows))
    )
    result = result if weighted_input else emit("Mul", result, factors)
    # A token chooses an expert once, so that no row is written twice.
    return emit("ScatterND", before, tokens, emit("Add", emit("GatherND", before, tokens), result))


def inner_states(emit: NodeBuilder, node: ir.Node, up: ir.Value, gate: ir.Value | None) -> ir.Value:
    """Return the intermediate states of experts, from their first layers of the same shape [..., F]."""
    attributes, dtype = node.attributes, dtype_of(canonical_inputs(node).x)
    activation, beta = attributes.get_string("activation"), attributes.get_float("beta")
    if gate is None:
        return activated(emit, activation, up, dtype, beta)
    limit, offset = attributes.get_float("limit"), attributes.get_float("up_offset")
    if limit:
        gate = emit("Min", gate, emit.constant(limit, dtype))
        up = emit("Clip", up, emit.constant(-limit, dtype), emit.constant(limit, dtype))
    up = activated(emit, attributes.get_string("up_activation"), up, dtype, beta)
    up = emit("Add", up, emit.constant(offset, dtype)) if offset else up
    return emit("Mul", activated(emit, activation, gate, dtype, beta), up)


def activated(emit: NodeBuilder, activation: str, x: ir.Value, dtype: ir.DataType, beta: float = 1.0) -> ir.Value:
    """Return an activation of `FeedForwardConfig` applied to x, in primitives of opset 18."""

    def number(value: float) -> ir.Value:
        return emit.constant(value, dtype)

    match activation:
        case "identity":
            return x
        case "relu":
            return emit("Relu", x)
        case "relu_squared":
            positive = emit("Relu", x)
            return emit("Mul", positive, positive)
        case "gelu":
            curve = emit("Erf", emit("Mul", x, number(math.sqrt(0.5))))
        case "gelu_tanh":
            cube = emit("Mul", emit("Mul", x, x), emit("Mul", x, number(0.044715)))
            curve = emit("Tanh", emit("Mul", emit("Add", x, cube), number(math.sqrt(2 / math.pi))))
        case "silu":
            return emit("Mul", x, emit("Sigmoid", x if beta == 1 else emit("Mul", x, number(beta))))
        case "sigmoid":
            return emit("Sigmoid", x)
        case "tanh":
            return emit("Tanh", x)
        case _:
            raise ValueError(f"there is no activation {activation!r}")
    return emit("Mul", emit("Mul", x, number(0.5)), emit("Add", curve, number(1.0)))
