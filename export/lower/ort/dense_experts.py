"""Lower a mixture of experts to products over all experts, for providers without control flow.

Dimensions: N tokens, E hidden, X experts, K experts of each token, F intermediate. It costs X / K times the arithmetic
of a loop over the chosen experts, and every weight is read in every step; nothing leaves the device.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import dim, dtype_of
from edgeformer.export.graph.expert_bodies import inner_states


def emit_dense_experts(emit: NodeBuilder, node: ir.Node) -> ir.Value:
    """Return Σ weight · network(x) over the chosen experts, [N, E]: all experts compute, and the others count 0 times."""
    inputs, weighted_input = canonical_inputs(node), node.attributes.get_int("weighted_input")
    weights = _by_expert(emit, node, inputs["weights"])
    chosen = weights
    if weighted_input:
        ones = emit("Expand", emit.constant(1.0, dtype_of(inputs.x)), emit("Shape", inputs["experts"]))
        chosen = _by_expert(emit, node, ones)

    def linear(name: str) -> ir.Value:
        """Return the first layers of all experts, [N, X, F]."""
        weight, bias = inputs[name], getattr(inputs, f"{name}_bias")
        flat = emit("Reshape", weight, emit.constant([-1, dim(weight, -1)]))  # [X · F, E]
        states = emit("Gemm", inputs["x"], flat, transB=1)
        states = emit("Reshape", states, emit.constant([-1, dim(weight, 0), dim(weight, 1)]))
        states = emit("Mul", states, _column(emit, weights)) if weighted_input else states
        return states if bias is None else emit("Add", states, bias)

    states = inner_states(emit, node, linear("up"), None if inputs.gate is None else linear("gate"))
    states = emit("Mul", states, _column(emit, chosen))
    # Weights stay as they are stored, [X, E, F]: the states are transposed instead.
    products = emit("MatMul", inputs["down"], emit("Transpose", states, perm=[1, 2, 0]))  # [X, E, N]
    sums = emit("ReduceSum", products, emit.constant([0]), keepdims=0)
    result = emit("Transpose", sums, perm=[1, 0])
    return result if inputs.down_bias is None else emit("Add", result, emit("MatMul", chosen, inputs.down_bias))


def _by_expert(emit: NodeBuilder, node: ir.Node, values: ir.Value) -> ir.Value:
    """Return numbers [N, K] of the chosen experts as [N, X], with 0 for the others."""
    inputs = canonical_inputs(node)
    shape = emit("Concat", emit("Shape", inputs["x"], start=0, end=1), emit.constant([dim(inputs.up, 0)]), axis=0)
    zeros = emit("Expand", emit.constant(0.0, dtype_of(inputs.x)), shape)
    return emit("ScatterElements", zeros, inputs["experts"], values, axis=1)


def _column(emit: NodeBuilder, values: ir.Value) -> ir.Value:
    """Return [N, X] as [N, X, 1]."""
    return emit("Unsqueeze", values, emit.constant([-1]))
