"""Nodes behind a product that its kernel can do, too: a gate, or a bias and perhaps an activation.

| nodes                                  | function of the product and them |
|----------------------------------------|----------------------------------|
| Split, x · Sigmoid, Mul                | MatMulNBitsSwiGLU                |
| Split, Gelu, Mul                       | MatMulNBitsGeGLU                 |
| Add of a constant vector               | MatMulNBitsBias                  |
| Add of a constant vector, Gelu         | MatMulNBitsBiasGelu              |

Nothing else may read what is between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import streamed
from edgeformer.export.lower.ort.kernels.kernel_nodes import PRODUCT, function_of

GATE_COLUMNS = 32
"""The kernel of a gated product takes outputs in multiples of it."""

SWIGLU, GEGLU, BIAS, BIAS_GELU = (f"{PRODUCT.name}{each}" for each in ("SwiGLU", "GeGLU", "Bias", "BiasGelu"))
"""Names of the functions."""

NOT_APPROXIMATE = ir.AttrString("approximate", "none")
"""The attribute of a Gelu that has none."""


@dataclass(frozen=True)
class Gate:
    """The nodes behind the product of a gate and that of what it gates.

    nodes: all of them, the last one first. gate, up: the two products, before the activation. approximate: the
    attribute of Gelu, None for SiLU.
    """

    nodes: Sequence[ir.Node]
    gate: ir.Value
    up: ir.Value
    approximate: ir.Attr | None


@dataclass(frozen=True)
class Epilogue:
    """Nodes behind one product that are done with it.

    nodes: all of them, the last one first. function: of the product and these nodes. bias: the vector that is added.
    approximate: the attribute of Gelu, None without one.
    """

    nodes: Sequence[ir.Node]
    function: str
    bias: ir.Value | None = None
    approximate: ir.Attr | None = None


def epilogue_of(product: ir.Node) -> Epilogue | None:
    """Return what is done with a product; None if it is nothing, or something else."""
    gate = _gate_behind(product)
    if gate is not None:
        return Epilogue(gate.nodes, SWIGLU if gate.approximate is None else GEGLU, None, gate.approximate)
    return _bias_behind(product)


def gate_of(mul: ir.Node | None) -> Gate | None:
    """Return the gate whose last node is this one, if nothing else reads what is in it."""
    if mul is None or mul.op_type != "Mul":
        return None
    for activated, up in (mul.inputs, mul.inputs[::-1]):
        last = None if activated is None or activated.is_graph_output() else activated.producer()
        if last is None or up is None or only_reader(activated) is not mul or only_reader(up) is not mul:
            continue
        gate = next(iter(last.inputs), None)
        if last.op_type == "Gelu" and gate is not None and only_reader(gate) is last:
            return Gate([mul, last], gate, up, _approximate(last))
        sigmoid = next((each for each in last.predecessors() if each.op_type == "Sigmoid"), None)
        if last.op_type == "Mul" and sigmoid is not None and sigmoid.inputs[0] in last.inputs:
            gate = sigmoid.inputs[0]
            assert gate is not None
            if {use.node for use in gate.uses()} == {last, sigmoid} and only_reader(sigmoid.outputs[0]) is last:
                return Gate([mul, last, sigmoid], gate, up, None)
    return None


def _approximate(gelu: ir.Node) -> ir.Attr:
    return gelu.attributes.get("approximate") or NOT_APPROXIMATE


def only_reader(value: ir.Value | None) -> ir.Node | None:
    """Return the node that alone reads a value; None if there are others, or if it is an output of the graph."""
    uses = () if value is None or value.is_graph_output() else value.uses()
    return next(iter(uses)).node if len(uses) == 1 else None


def _gate_behind(product: ir.Node) -> Gate | None:
    """Return the gate that a product's two halves make, if nothing else reads them."""
    split = only_reader(product.outputs[0])
    if split is None or split.op_type != "Split" or len(split.outputs) != 2:
        return None
    half = product.attributes.get_int("N") // 2
    if half % GATE_COLUMNS or split.outputs[0].shape is None or split.outputs[0].shape[-1] != half:
        return None
    found = gate_of(only_reader(split.outputs[1]))
    if found is None or (found.gate, found.up) != tuple(split.outputs):
        return None
    return replace(found, nodes=[*found.nodes, split])


def _bias_behind(product: ir.Node) -> Epilogue | None:
    """Return the bias that is added to a product, and Gelu behind it, if it is a constant vector of float32."""
    y = product.outputs[0]
    added = only_reader(y)
    if added is None or added.op_type != "Add":
        return None
    bias = next(value for value in added.inputs if value is not y)
    tensor = streamed(bias)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or tuple(tensor.shape) != (product.attributes.get_int("N"),):
        return None
    gelu = only_reader(added.outputs[0])
    if gelu is None or gelu.op_type != "Gelu":
        return Epilogue([added], BIAS, bias)
    return Epilogue([gelu, added], BIAS_GELU, bias, _approximate(gelu))


def function_with(product: ir.Node, epilogue: Epilogue) -> ir.Function:
    """Return the function of a product and its epilogue. product: the node that its body begins with."""
    emit, formal, y = NodeBuilder("epilogue"), list(product.inputs), product.outputs[0]
    attributes, approximate = dict(PRODUCT.attributes), None
    if epilogue.approximate is not None:
        attributes["approximate"] = ir.AttributeType.STRING
        approximate = ir.RefAttr("approximate", "approximate", ir.AttributeType.STRING)
    if epilogue.bias is None:
        gate, up = emit.many("Split", y, outputs=2, axis=-1, num_outputs=2)
        is_silu = approximate is None
        activated = emit("Mul", gate, emit("Sigmoid", gate)) if is_silu else emit("Gelu", gate, approximate=approximate)
        y = emit("Mul", activated, up)
    else:
        formal.append(ir.Value(name="bias"))
        y = emit("Add", y, formal[-1])
        y = y if approximate is None else emit("Gelu", y, approximate=approximate)
    return function_of(epilogue.function, formal, [y], [product, *emit.nodes], attributes)
