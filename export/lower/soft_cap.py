"""Compute the tanh of a soft-cap without cancellation, where the provider's kernel loses the digits of small numbers.

    Mul(Tanh(x), c), c > 1     becomes     Mul(Where(|x| < 0.625, x + x·z·P(z), Tanh(x)), c),  z = x²

A kernel that computes (1 - e) / (1 + e), e = exp(-2|x|), is off by a unit roundoff however small x is, and the soft-cap
makes that c times as large: of logits around 1 under a cap of 30, more than all other nodes together. A Tanh that
nothing makes larger stays as it is.
"""

import numpy as np
import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_each
from edgeformer.export.graph.editing import dtype_of
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions

SMALL = 0.625
"""Numbers below it are computed by the polynomial."""

POLYNOMIAL = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
"""P, from its highest power on: (tanh(x) / x - 1) / x², to 1.3e-7 of tanh(x). Source: tanhf.c of Cephes 2.2."""


def lower_soft_cap(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Replace every Tanh that a constant makes larger, for a provider whose kernel is not exact for small numbers."""
    exact = lowering.rules.exact_tanh
    nodes = [] if exact else [node for node in model.graph if node.op_type == "Tanh" and _is_enlarged(node)]
    return replace_each("soft_cap", nodes, f"emitted by lower/{lowering.ops}", _tanh)


def _is_enlarged(node: ir.Node) -> bool:
    """Return whether all that read the result of a node multiply it by a constant above 1."""
    readers = [reader for reader, _ in node.outputs[0].uses()]
    factors = [
        factor.const_value.numpy()
        for reader in readers
        if reader.op_type == "Mul"
        for factor in reader.inputs
        if factor is not None and factor is not node.outputs[0] and factor.const_value is not None
    ]
    return 0 < len(readers) == len(factors) and all(factor.size == 1 and np.all(factor > 1) for factor in factors)


def _tanh(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
    x = node.inputs[0]
    dtype = dtype_of(x)
    square = emit("Mul", x, x)
    first, *rest = (emit.constant(each, dtype) for each in POLYNOMIAL)
    value = first
    for coefficient in rest:
        value = emit("Add", emit("Mul", value, square), coefficient)
    near = emit("Add", emit("Mul", emit("Mul", value, square), x), x)
    small = emit("Less", emit("Abs", x), emit.constant(SMALL, dtype))
    return [emit("Where", small, near, emit("Tanh", x))]
