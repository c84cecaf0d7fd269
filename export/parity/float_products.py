"""Graphs whose integer products round nothing: what is left of them can be held to float64 like any other graph.

    steps   = QuantizeLinear(x, step, zeros)                            becomes   x / step + zeros, from 0 to 255
    product = MatMulIntegerToFloat(steps, W, scale, scales of W, zero)  becomes   (steps − zero) · W · scale · scales

in float64, so that this arithmetic adds nothing to what the other nodes err. Every scale, zero point and integer is the
one that the graph reads. A product of another form is left as it is, and rounds: no check of float32 lets that pass.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgeformer.errors import BundleError
from edgeformer.export.bundle.ort_format import load_onnx
from edgeformer.export.parity.locate.cut_graph import first_line, open_model
from edgeformer.manifest import Provider
from edgeformer.runtime.session import onnxruntime_errors

PRODUCT, ROUNDING = "MatMulIntegerToFloat", "QuantizeLinear"
BOUNDS = {"unrounded/lowest": 0.0, "unrounded/highest": 255.0}


def open_unrounded(path: Path, provider: Provider) -> Any:
    """Open an `onnxruntime.InferenceSession` on a graph without the rounding of its integer products.

    Products in blocks (MatMulNBits) round nothing in it, either, since no weight is prepacked. Raises BundleError for a
    graph that onnxruntime cannot load.
    """
    model = load_onnx(path)
    remove_rounding(model.graph)
    try:
        return open_model(model, path.parent, provider, optimise=False)
    except onnxruntime_errors() as error:
        raise BundleError(f"onnxruntime cannot load {path} without its rounding: {first_line(error)}") from error


def remove_rounding(graph: onnx.GraphProto) -> int:
    """Replace integer products, and the rounding of what they read, which may be shared; return how many products."""
    count = _remove_rounding(graph)
    graph.initializer.extend(numpy_helper.from_array(np.array(bound), name) for name, bound in BOUNDS.items())
    return count


def _remove_rounding(graph: onnx.GraphProto) -> int:
    """The same of one graph and of the branches in it."""
    branches = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    within = sum(map(_remove_rounding, branches))
    roundings = {node.output[0]: node for node in graph.node if node.op_type == ROUNDING}
    products = [
        node for node in graph.node if node.op_type == PRODUCT and len(node.input) <= 5 and node.input[0] in roundings
    ]
    formulas = {node.output[0]: _product(node) for node in products}
    formulas |= {node.input[0]: _steps(roundings[node.input[0]]) for node in products}
    nodes = [each for node in graph.node for each in formulas.get(node.output[0], [node])]
    del graph.node[:]
    graph.node.extend(nodes)
    return len(products) + within


class _Formula:
    """Nodes in place of one, in the order in which they are written."""

    def __init__(self, node: NodeProto):
        self.nodes: list[NodeProto] = []
        self._prefix = f"{node.output[0]}/unrounded"

    def __call__(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        name = output or f"{self._prefix}/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def wide(self, value: str) -> str:
        """The same as float64."""
        return self("Cast", value, to=TensorProto.DOUBLE)


def _steps(node: NodeProto) -> list[NodeProto]:
    formula = _Formula(node)
    x, step, *zero = (formula.wide(each) for each in node.input)
    steps = formula("Div", x, step)
    for each in zero:
        steps = formula("Add", steps, each)
    formula("Clip", steps, *BOUNDS, output=node.output[0])
    return formula.nodes


def _product(node: NodeProto) -> list[NodeProto]:
    formula = _Formula(node)
    steps, (integers, step, scales, *zero) = node.input[0], (formula.wide(each) for each in node.input[1:])
    for each in zero:
        steps = formula("Sub", steps, each)
    product = formula("Mul", formula("MatMul", steps, integers), formula("Mul", step, scales))
    formula("Cast", product, to=TensorProto.FLOAT, output=node.output[0])
    return formula.nodes
