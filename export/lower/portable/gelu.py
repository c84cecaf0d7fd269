"""Gelu, which ONNX has since opset 20, in what it had before.

x/2 · (1 + erf(x / √2))     and, where approximated,     x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))
"""

import math

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import dtype_of
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.passes import PassReport


def lower_gelu(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Write out every Gelu."""
    report = PassReport("Gelu")
    for node in [node for node in model.graph if node.domain == "" and node.op_type == "Gelu"]:
        x, emit = node.inputs[0], NodeBuilder(node.name or "")
        dtype = dtype_of(x)
        if node.attributes.get_string("approximate", "none") == "tanh":
            cube = emit("Mul", emit("Mul", x, x), x)
            inner = emit("Add", x, emit("Mul", cube, emit.constant(0.044715, dtype)))
            curve = emit("Tanh", emit("Mul", inner, emit.constant(math.sqrt(2 / math.pi), dtype)))
        else:
            curve = emit("Erf", emit("Div", x, emit.constant(math.sqrt(2), dtype)))
        half = emit("Mul", x, emit.constant(0.5, dtype))
        report.fire(node)
        replace_node(node, emit, [emit("Mul", half, emit("Add", curve, emit.constant(1.0, dtype)))])
    return report
