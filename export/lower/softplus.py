"""Compute softplus without cancellation, where the provider's kernel loses the digits of small results.

    Softplus(x)     becomes     Relu(x) + s·P(s²),  s = e / (2 + e),  e = exp(-|x|)

A kernel that computes log(1 + exp(x)) is off by a unit roundoff of 1 however small the result is. The time steps of a
state space are small, and what a token adds to its state and how fast that decays are proportional to them.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_each
from edgeformer.export.graph.editing import dtype_of
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions

POLYNOMIAL = (2.81577783135e-1, 2.79651577568e-1, 4.00245952298e-1, 6.66663216414e-1, 2.00000000768)
"""P, from its highest power on: log(1 + e) = 2·artanh(s) = s·P(s²) to 4e-9 of it, for e up to 1, so s² up to 1/9.

It is the interpolation of 2·artanh(√z) / √z at the Chebyshev nodes of [0, 1/9].
"""


def lower_softplus(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Replace every Softplus, for a provider whose kernel is not exact for small results."""
    exact = lowering.rules.exact_softplus
    nodes = [] if exact else [node for node in model.graph if node.op_type == "Softplus"]
    return replace_each("softplus", nodes, f"emitted by lower/{lowering.ops}", _softplus)


def _softplus(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
    x = node.inputs[0]
    dtype = _dtype_of(x)
    e = emit("Exp", emit("Neg", emit("Abs", x)))
    s = emit("Div", e, emit("Add", e, emit.constant(2.0, dtype)))
    square = emit("Mul", s, s)
    value, *rest = (emit.constant(each, dtype) for each in POLYNOMIAL)
    for coefficient in rest:
        value = emit("Add", emit("Mul", value, square), coefficient)
    return [emit("Add", emit("Relu", x), emit("Mul", value, s))]


def _dtype_of(value: ir.Value | None) -> ir.DataType:
    """Return the element type of a value, or of what it is the product or the sum of: of these torch may name none."""
    producer = None if value is None else value.producer()
    if value is not None and value.dtype is None and producer is not None and producer.op_type in ("Add", "Mul"):
        return _dtype_of(producer.inputs[0])
    return dtype_of(value)
