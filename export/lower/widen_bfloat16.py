"""Run ops in float32 that have no bfloat16 kernel on CUDA.

    x bfloat16 → TopK → values     becomes     x → Cast(float32) → TopK → Cast(bfloat16) → values

Every bfloat16 number is a float32 number, so ops that only move or compare numbers return the same, and the others
round once. The ops are those for which the kernel table of onnxruntime 1.31.1 (edgeformer/check/providers/kernels.json)
lacks bfloat16 in an opset of our graphs; `edgeformer check --provider cuda` finds one that is missing here.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import origin_of

READS: dict[str, tuple[int, ...]] = {
    "Clip": (0, 1, 2), "Conv": (0, 1, 2), "CumSum": (0,), "Equal": (0, 1), "Greater": (0, 1), "GreaterOrEqual": (0, 1),
    "Less": (0, 1), "LessOrEqual": (0, 1), "Log": (0,), "NonZero": (0,), "Pad": (0, 2), "ReduceL2": (0,), "TopK": (0,),
}  # fmt: skip
"""Inputs of the type that has no kernel, by op; of an Einsum all are."""

RETURNS_OTHERS = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "NonZero"}
"""Ops whose outputs have a type of their own; the first output of the others has the type of the inputs."""

TYPES = dict.fromkeys(
    ("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "Range"), ir.DataType.INT64
) | dict.fromkeys(
    ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf"),
    ir.DataType.BOOL,
)  # fmt: skip
"""The type of an op's outputs, where it is not that of its inputs. (Our ranges are of whole numbers.)"""


def widen_bfloat16(model: ir.Model) -> PassReport:
    """Put casts around every node that reads bfloat16 and whose op has no kernel for it."""
    report = PassReport("widen_bfloat16")
    types: dict[ir.Value, ir.DataType | None] = {}
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        kinds = [None if value is None else _type(value, types) for value in node.inputs]
        for place, value in enumerate(node.outputs):
            types[value] = value.dtype or _returned(node, place, kinds)
        places = range(len(kinds)) if node.op_type == "Einsum" else READS.get(node.op_type, ())
        wide = [each for each in places if each < len(kinds) and kinds[each] == ir.DataType.BFLOAT16]
        if node.domain == "" and wide:
            _widen(node, wide)
            report.fire(node)
    return report


def _type(value: ir.Value, types: dict[ir.Value, ir.DataType | None]) -> ir.DataType | None:
    if value.dtype is not None:
        return value.dtype
    return types.get(value) if value.const_value is None else value.const_value.dtype


def _returned(node: ir.Node, place: int, kinds: list[ir.DataType | None]) -> ir.DataType | None:
    """Return the type of an output, as far as types that no pass has recorded must be known here."""
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int())
    if node.op_type == "Constant":
        tensor = node.attributes.get("value")
        return None if tensor is None else tensor.as_tensor().dtype
    if node.op_type == "ConstantOfShape":
        tensor = node.attributes.get("value")
        return ir.DataType.FLOAT if tensor is None else tensor.as_tensor().dtype
    if node.op_type in TYPES:
        return TYPES[node.op_type]
    if node.op_type == "TopK" and place == 1:
        return ir.DataType.INT64
    return kinds[1 if node.op_type == "Where" else 0] if kinds else None


def _widen(node: ir.Node, places: list[int]) -> None:
    before = NodeBuilder(f"{node.name}/widened", origin_of(node))
    for place in places:
        node.replace_input_with(place, before("Cast", node.inputs[place], to=ir.DataType.FLOAT))
    assert node.graph is not None
    node.graph.insert_before(node, before.nodes)
    if node.op_type in RETURNS_OTHERS:
        return
    after, output = NodeBuilder(f"{node.name}/narrowed", origin_of(node)), node.outputs[0]
    narrow = after("Cast", output, to=ir.DataType.BFLOAT16)
    output.replace_all_uses_with(narrow, replace_graph_outputs=True)
    after.nodes[0].replace_input_with(0, output)  # the cast itself reads the wide one
    name, narrow.shape = output.name, output.shape
    output.name, narrow.name = f"{name}/wide", name  # outputs of the graph keep their names
    narrow.dtype, output.dtype = ir.DataType.BFLOAT16, ir.DataType.FLOAT
    node.graph.insert_after(node, after.nodes)
