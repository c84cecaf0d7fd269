"""Call products of floats through functions of the model, in domain `edgeformer`, for which kernels may stand in.

| function         | its body                                      |
|------------------|-----------------------------------------------|
| MatMul           | MatMul with a constant weight                 |
| TransposedMatMul | FusedMatMul with a transposed constant weight |
| MatMulSwiGLU     | MatMul, MatMul, Sigmoid, Mul, Mul             |
| MatMulGeGLU      | MatMul, MatMul, Gelu, Mul                     |

With weights of bfloat16, Bf16MatMul and so on begin with a Cast of each. Where no kernel runs, onnxruntime folds it
when a session is opened, and weights in memory are float32; kernels read bfloat16.

Attention and norms are called as in graphs with quantized products (kernel_functions.py), with one difference: kernels
must not round the products of attention to bfloat16 (`keeps_float32`). It requires float32 activations, the CPU,
weights of float32 or bfloat16, and attention to a cache: a graph without one reads no weight for a single token.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from edgeformer.contract.ops import ATTENTION, CONTRIB, DOMAIN, FLOAT_PRODUCTS, FUNCTIONS, PRODUCT, TRANSPOSED_PRODUCT
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import dim, dtype_of, producer, remove_if_unused, streamed
from edgeformer.export.graph.outlining import add_function
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.kernels.epilogues import GATE_COLUMNS, gate_of
from edgeformer.export.lower.ort.kernels.kernel_functions import call_each, fitting, give_type
from edgeformer.export.lower.ort.kernels.kernel_nodes import ATTENTION as CACHED
from edgeformer.export.lower.ort.kernels.kernel_nodes import KERNELS, function_of

BF16 = "Bf16"
"""How names of functions begin whose weights are bfloat16."""

MAT_MUL, TRANSPOSED = (each.name for each in FLOAT_PRODUCTS["fp32"])
SWIGLU, GEGLU = f"{MAT_MUL}SwiGLU", f"{MAT_MUL}GeGLU"
CALLS = (MAT_MUL, TRANSPOSED, SWIGLU, GEGLU)
"""Names of the functions with float32 weights."""

EXACT = {"keeps_float32": 1}
"""Attributes of calls of attention whose kernel would else round."""

ROUNDING = {each.name for each in FUNCTIONS if each.body is ATTENTION}
"""Names of functions whose kernels may round the products of long prompts and pictures."""


def call_float_kernels(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Replace products of floats, and the attention and norms between them, by calls of their functions."""
    report = PassReport("float_kernels")
    wanted = lowering.runs_on.own_kernels and lowering.precision in ("fp32", "bf16")
    if not wanted or not fitting(model, CACHED):
        return report
    for node in [node for node in model.graph if node.op_type == "Mul"]:
        _call_gated(model, node, report)
    for node in list(model.graph):
        name = _name_of(node)
        if name is not None:
            _put_call(model, name, node.inputs, [node], None, report)
    for kernel in KERNELS[1:] if report.changed else ():
        call_each(model, replace(kernel, of_kernel=EXACT) if kernel.name in ROUNDING else kernel, report)
    return report


def _name_of(node: ir.Node | None) -> str | None:
    """Return the function of a product of floats with a constant matrix; None for any other node."""
    if node is None or (node.domain, node.op_type) not in (PRODUCT.key, TRANSPOSED_PRODUCT.key):
        return None
    x, weight = node.inputs[:2]
    tensor = streamed(weight)
    if tensor is None or len(tensor.shape) != 2 or {dtype_of(x), tensor.dtype} != {ir.DataType.FLOAT}:
        return None
    return MAT_MUL if node.op_type == PRODUCT.name else TRANSPOSED


def _call_gated(model: ir.Model, mul: ir.Node, report: PassReport) -> None:
    """Put one call in the place of two products and their gate."""
    found = gate_of(mul)
    if found is None:
        return
    gate, up = found.gate.producer(), found.up.producer()
    if _name_of(gate) != MAT_MUL or _name_of(up) != MAT_MUL:
        return
    assert gate is not None and up is not None
    (x, of_gate), (of_x, of_up) = gate.inputs, up.inputs
    if x is of_x and dim(of_gate, 1) == dim(of_up, 1) and dim(of_up, 1) % GATE_COLUMNS == 0:
        name = SWIGLU if found.approximate is None else GEGLU
        _put_call(model, name, [x, of_gate, of_up], [*found.nodes, gate, up], found.approximate, report)


def _put_call(
    model: ir.Model,
    name: str,
    inputs: Sequence[ir.Value | None],
    nodes: Sequence[ir.Node],
    approximate: ir.Attr | None,
    report: PassReport,
) -> None:
    """Put a call of a function in the place of some nodes, the last one of which comes first."""
    last = nodes[0]
    give_type(last.outputs[0], inputs)
    emit = NodeBuilder.replacing(last, "emitted by lower/ort")
    replace_node(last, emit, [emit(name, *inputs, domain=DOMAIN, approximate=approximate)])
    remove_if_unused(model, *nodes[1:])
    add_function(model, float_function(name))
    report.fire(emit.nodes[0])


def float_function(name: str) -> ir.Function:
    """Return one of the functions, by its name."""
    emit, base = NodeBuilder("product"), name.removeprefix(BF16)
    x, *weights = [ir.Value(name=each) for each in ("A", *(("gate", "up") if base in (SWIGLU, GEGLU) else ("B",)))]
    floats = weights if base == name else [emit("Cast", each, to=ir.DataType.FLOAT) for each in weights]
    attributes = {}
    if base == TRANSPOSED:
        y = emit("FusedMatMul", x, *floats, domain=CONTRIB, transA=0, transB=1)
    else:
        y, *ups = [emit("MatMul", x, each) for each in floats]
    if base == SWIGLU:
        y = emit("Mul", emit("Mul", y, emit("Sigmoid", y)), *ups)
    if base == GEGLU:
        attributes["approximate"] = ir.AttributeType.STRING
        reference = ir.RefAttr("approximate", "approximate", ir.AttributeType.STRING)
        y = emit("Mul", emit("Gelu", y, approximate=reference), *ups)
    return function_of(name, [x, *weights], [y], emit.nodes, attributes)


def read_bfloat16(model: ir.Model) -> PassReport:
    """Let calls whose weights are casts of bfloat16 read these themselves."""
    report = PassReport("read_bfloat16")
    for node in [node for node in model.graph if node.domain == DOMAIN and node.op_type in CALLS]:
        casts = [producer(value, "Cast") for value in node.inputs[1:]]
        halves = [None if cast is None else cast.inputs[0] for cast in casts]
        if not all(value is not None and dtype_of(value) == ir.DataType.BFLOAT16 for value in halves):
            continue
        for place, value in enumerate(halves, start=1):
            node.replace_input_with(place, value)
        node.op_type = BF16 + node.op_type
        add_function(model, float_function(node.op_type))
        remove_if_unused(model, *dict.fromkeys(casts))
        report.fire(node)
    for name in CALLS:
        if not any(node.domain == DOMAIN and node.op_type == name for node in model.graph):
            model.functions.pop((DOMAIN, name, ""), None)
    return report
