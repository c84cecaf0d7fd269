"""Lower a mixture of experts to products with all experts, for providers without control flow.

Dimensions: N tokens, E hidden, X experts, K experts of each token, F intermediate. The layers of all experts are one
product, in integers where the quantization config has a format for them. It costs X / K times the arithmetic of the
chosen experts, and every weight is read in every step; nothing leaves the device.
"""

from collections.abc import Sequence

import onnx_ir as ir

from edgeformer.contract.ops import BLOCK_PRODUCT, CONTRIB
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import (
    add_initializer,
    canonical_nodes,
    dim,
    dtype_of,
    remove_initializer,
    streamed,
)
from edgeformer.export.graph.expert_bodies import inner_states
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.quantized import INT8_ACTIVATIONS
from edgeformer.export.quantize.quantized_experts import QuantizedExperts
from edgeformer.manifest.quantization import WeightFormat

ALL_EXPERTS = "every token computes all experts"
"""The words of a lowering's report about it."""


def lower_dense_experts(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every mixture of experts, for a provider without control flow and an op set without an op for them."""
    report = PassReport("MixtureOfExperts")
    for node in canonical_nodes(model, "MixtureOfExperts") if not lowering.rules.loops else ():
        report.miss(node, f"{lowering.ops} has no op of experts; {ALL_EXPERTS}")
        emit = NodeBuilder.replacing(node, f"emitted by lower/{lowering.ops}")
        replace_node(node, emit, [emit_dense_experts(emit, model, node, None)])
    return report


def emit_dense_experts(emit: NodeBuilder, model: ir.Model, node: ir.Node, form: WeightFormat | None) -> ir.Value:
    """Return Σ weight · network(x) over the chosen experts, [N, E]: the others count 0 times.

    form: of the integers that weights are stored as; None for numbers of x's type.
    """
    inputs, weighted_input = canonical_inputs(node), node.attributes.get_int("weighted_input")
    experts, outer, inner = dim(inputs.up, 0), dim(inputs.up, 2), dim(inputs.up, 1)
    weights = _by_expert(emit, node, inputs["weights"])
    chosen = weights
    if weighted_input:
        ones = emit("Expand", emit.constant(1.0, dtype_of(inputs.x)), emit("Shape", inputs["weights"]))
        chosen = _by_expert(emit, node, ones)

    def product(name: str, x: ir.Value) -> ir.Value:
        """Multiply with the weights of all experts: rows of their outputs, or of `down` one row with all inputs."""
        first = name != "down"
        rows, columns = (experts * inner, outer) if first else (outer, experts * inner)

        def matrix(part: ir.Value, *shape: int) -> ir.Value:
            stored = part if first else emit("Transpose", part, perm=[1, 0, 2])
            return emit("Reshape", stored, emit.constant([rows, *shape]))

        if form is None:
            return emit("Gemm", x, matrix(inputs[name], columns), transB=1)
        assert form.block is not None
        integers, *scales = [each for each in quantized_parts(model, inputs[name], form) if each is not None]
        blocks = matrix(integers, columns // form.block, form.block * form.bits // 8)
        others = [matrix(each, -1) for each in scales]
        options = {"bits": form.bits, "block_size": form.block, "accuracy_level": INT8_ACTIVATIONS}
        return emit(BLOCK_PRODUCT.name, x, blocks, *others, domain=CONTRIB, K=columns, N=rows, **options)

    def first_layer(name: str) -> ir.Value:
        """Return the states of all experts, [N, X, F]."""
        states = emit("Reshape", product(name, inputs["x"]), emit.constant([-1, experts, inner]))
        states = emit("Mul", states, _column(emit, weights)) if weighted_input else states
        bias = getattr(inputs, f"{name}_bias")
        return states if bias is None else emit("Add", states, bias)

    states = inner_states(emit, node, first_layer("up"), None if inputs.gate is None else first_layer("gate"))
    states = emit("Mul", states, _column(emit, chosen))
    result = product("down", emit("Reshape", states, emit.constant([-1, experts * inner])))
    return result if inputs.down_bias is None else emit("Add", result, emit("MatMul", chosen, inputs.down_bias))


def format_of_dense(node: ir.Node, form: WeightFormat | None) -> WeightFormat | None:
    """Return the format that the products can have of that of the kernel of experts; None for numbers.

    Zero points of two blocks share a byte in 4 bits, so that the rows of experts join only where blocks are even.
    """
    inputs = canonical_inputs(node)
    weights = [each for each in (inputs.gate, inputs.up, inputs.down) if each is not None]
    if form is None or form.block is None or any(streamed(each) is None for each in weights):
        return None
    whole = form.symmetric or dim(inputs.up, 1) // form.block * form.bits % 8 == 0
    return form if whole else None


def quantized_parts(model: ir.Model, weight: ir.Value, form: WeightFormat) -> Sequence[ir.Value | None]:
    """Register integers, scales and zero points (None in a symmetric format) instead of a weight."""
    tensor = streamed(weight)
    assert tensor is not None
    remove_initializer(model, weight)
    parts: list[ir.Value | None] = [add_initializer(model, part) for part in QuantizedExperts(tensor, form).parts()]
    return [*parts, None][:3]


def _by_expert(emit: NodeBuilder, node: ir.Node, values: ir.Value) -> ir.Value:
    """Return numbers [N, K] of the chosen experts as [N, X], with 0 for the others."""
    inputs = canonical_inputs(node)
    shape = emit("Concat", emit("Shape", inputs["x"], start=0, end=1), emit.constant([dim(inputs.up, 0)]), axis=0)
    zeros = emit("Expand", emit.constant(0.0, dtype_of(inputs.x)), shape)
    return emit("ScatterElements", zeros, inputs["experts"], values, axis=1)


def _column(emit: NodeBuilder, values: ir.Value) -> ir.Value:
    """Return [N, X] as [N, X, 1]."""
    return emit("Unsqueeze", values, emit.constant([-1]))
