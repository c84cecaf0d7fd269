"""Call layers with a state of fixed size through functions of the model, for which kernels may stand in.

| function              | its body                                           |
|-----------------------|----------------------------------------------------|
| MaskedCausalConv      | the function body of CausalConv                    |
| MaskedLinearAttention | LinearAttention of onnxruntime, without padding    |

They have the inputs and attributes of the canonical ops, with their mask of tokens. A body depends on sizes and on
inputs that are absent, so a model whose layers differ in these calls one of the two, and has the nodes of the other.
Requires float32, the CPU, and quantized products, as kernel_functions.py does.
"""

from collections.abc import Callable

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN, MASKED_CONVOLUTION, MASKED_LINEAR_ATTENTION
from edgeformer.export.graph.builder import NodeBuilder, Outputs, replace_node
from edgeformer.export.graph.canonical import VERSION
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.recurrent_bodies import causal_conv
from edgeformer.export.lower.functions import function_of_node
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.attention.linear_attention import emit_attention, why_no_kernel
from edgeformer.export.lower.ort.kernels.kernel_nodes import OPSET
from edgeformer.export.lower.ort.kernels.recurrent_layout import simplify_recurrent_layout

NAMES = {"CausalConv": MASKED_CONVOLUTION.name, "LinearAttention": MASKED_LINEAR_ATTENTION.name}
"""The functions of canonical ops."""

MOST_TAPS = 16
"""The kernel takes convolutions of up to so many taps."""


def call_recurrent_kernels(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Replace convolutions and linear attention by calls of their functions."""
    report = PassReport("recurrent_kernels")
    if not lowering.runs_on.own_kernels or not canonical_nodes(model, "QuantizedMatMul"):
        return report
    bodies: dict[str, Callable[[NodeBuilder, ir.Node], Outputs]] = {
        "CausalConv": lambda emit, node: causal_conv(emit, node, lowering.cache_form),
        "LinearAttention": lambda emit, node: emit_attention(emit, node, lowering),
    }
    functions: dict[str, bytes] = {}
    for node in canonical_nodes(model, *NAMES):
        if not _fits(node):
            continue
        name = NAMES[node.op_type]
        function = function_of_node(node, name, bodies[node.op_type], OPSET)
        content = ir.serde.serialize_function(function).SerializeToString(deterministic=True)
        if functions.setdefault(name, content) != content:
            continue
        model.functions[function.identifier()] = function
        model.opset_imports[DOMAIN] = VERSION
        emit = NodeBuilder.replacing(node, "emitted by lower/ort")
        attributes = {each.name: each.value for each in node.attributes.values()}
        replace_node(node, emit, emit.many(name, *node.inputs, outputs=2, domain=DOMAIN, **attributes))
        report.fire(node)
    if report.changed:
        simplify_recurrent_layout(model)
    return report


def _fits(node: ir.Node) -> bool:
    floats = [value for value in node.inputs if value is not None and dtype_of(value) != ir.DataType.BOOL]
    if any(dtype_of(value) != ir.DataType.FLOAT for value in floats):
        return False
    if node.op_type == "CausalConv":
        return 1 < dim(node.inputs[1], 1) <= MOST_TAPS
    return why_no_kernel(node) is None
