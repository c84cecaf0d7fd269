"""Replace Gelu, which ONNX has since opset 20, by older ops.

Gelu(x)                        becomes     x/2 · (1 + erf(x / √2))
Gelu(x, approximate=tanh)      becomes     x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))
"""

import math

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_each
from edgeformer.export.graph.editing import dtype_of
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions


def lower_gelu(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Decompose every Gelu."""
    nodes = [node for node in model.graph if node.domain == "" and node.op_type == "Gelu"]
    return replace_each("Gelu", nodes, "emitted by lower/portable", _gelu)


def _gelu(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
    x = node.inputs[0]
    dtype = dtype_of(x)
    if node.attributes.get_string("approximate", "none") == "tanh":
        cube = emit("Mul", emit("Mul", x, x), x)
        inner = emit("Add", x, emit("Mul", cube, emit.constant(0.044715, dtype)))
        curve = emit("Tanh", emit("Mul", inner, emit.constant(math.sqrt(2 / math.pi), dtype)))
    else:
        curve = emit("Erf", emit("Div", x, emit.constant(math.sqrt(2), dtype)))
    half = emit("Mul", x, emit.constant(0.5, dtype))
    return [emit("Mul", half, emit("Add", curve, emit.constant(1.0, dtype)))]
