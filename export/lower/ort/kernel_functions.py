"""Call quantized products through a function of the model, `edgeformer::MatMulNBits`, for which a kernel may stand in.

The function's body is onnxruntime's own op, so a graph computes the same, bit for bit, wherever it is loaded. A program
that registers the library of edgeformer-kernels gets its kernel instead: onnxruntime prefers a kernel to a function of
the same name. It requires float32 and the CPU, and weights in blocks that the kernel takes.
"""

import onnx_ir as ir

from edgeformer.export.graph.canonical import DOMAIN, VERSION
from edgeformer.export.graph.editing import dtype_of
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.contrib import CONTRIB
from edgeformer.export.lower.options import LoweringOptions

OP = "MatMulNBits"

FORMAL = ("A", "B", "scales", "zero_points")
"""Inputs of the function, as in onnxruntime's op; a call without zero points leaves the last one out."""

SIZES = ("K", "N", "bits", "block_size")
"""Attributes that differ between calls. The others are the same in all, and stand in the body."""

MOST = {4: 256, 8: 65536}
"""The largest block that the kernel takes, by the number of bits."""


def call_kernels(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Replace every MatMulNBits that the kernel can compute by a call of the function."""
    report = PassReport("kernels")
    if lowering.provider != "cpu":
        return report
    functions: dict[bytes, ir.Function] = {}
    for node in list(model.graph):
        if (node.domain, node.op_type) == (CONTRIB, OP) and _is_supported(node):
            fixed = [each for name, each in node.attributes.items() if name not in SIZES]
            function = _function(fixed)
            functions.setdefault(ir.serde.serialize_function(function).SerializeToString(deterministic=True), function)
            for each in fixed:
                del node.attributes[each.name]
            node.domain = DOMAIN
            report.fire(node)
    assert len(functions) <= 1, "calls with different bodies need functions of different names"
    for function in functions.values():
        model.functions[function.identifier()] = function
        model.opset_imports[DOMAIN] = VERSION
    return report


def _is_supported(node: ir.Node) -> bool:
    bits, block = node.attributes.get_int("bits"), node.attributes.get_int("block_size")
    return (
        dtype_of(node.inputs[0]) == ir.DataType.FLOAT and len(node.inputs) <= len(FORMAL) and block <= MOST.get(bits, 0)
    )


def _function(fixed: list[ir.Attr]) -> ir.Function:
    inputs = [ir.Value(name=name) for name in FORMAL]
    sizes = [ir.RefAttr(name, name, ir.AttributeType.INT) for name in SIZES]
    call = ir.Node(CONTRIB, OP, inputs, [*sizes, *fixed], num_outputs=1, name=OP)
    call.outputs[0].name = "Y"
    graph = ir.Graph(inputs, call.outputs, nodes=[call], opset_imports={CONTRIB: 1}, name=OP)
    return ir.Function(
        DOMAIN, OP, graph=graph, attributes=[ir.Attr(name, ir.AttributeType.INT, None) for name in SIZES]
    )
