"""Open graphs whose products do not round their activations, so that they can be held to float64.

Integer products are replaced by float64 products, and products in blocks by float32 ones (block_products.py).

    steps   = QuantizeLinear(x, step, zeros)                            becomes   x / step + zeros, from 0 to 255
    product = MatMulIntegerToFloat(steps, W, scale, scales of W, zero)  becomes   (steps − zero) · W · scale · scales

in float64, so that this arithmetic adds no error to that of the other nodes. Every scale, zero point and integer is the
one that the graph reads. A product of another form is left as it is; it rounds, so the checks of float32 fail.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgeformer.contract.ops import BLOCK_PRODUCT, INTEGER_PRODUCT, ROUNDING
from edgeformer.contract.tensors import REQUEST_LENGTH
from edgeformer.errors import BundleError
from edgeformer.export.bundle.ort_format import SUFFIX, load_onnx
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity.block_products import BlockProducts
from edgeformer.export.parity.locate.cut_graph import first_line, open_model
from edgeformer.manifest.providers import Provider
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.runtime.sessions.graphs.optional_inputs import added_input
from edgeformer.runtime.sessions.session import Rewritten, onnxruntime_errors, open_session

BOUNDS = {"float_product/lowest": 0.0, "float_product/highest": 255.0}
"""Names and values of the constants that bound a uint8 activation."""


FLOAT_ACTIVATIONS = 1
"""Value of MatMulNBits' attribute accuracy_level for float32 activations."""


def open_unrounded(paths: Sequence[Path], provider: Provider, formats: Iterable[WeightFormat]) -> list[Any]:
    """Open graphs that share weights, as they are stored, so that no product rounds its activations.

    formats: of the quantized weights; none for a bundle that is not quantized.
    """
    blocks = {form.block for form in formats}
    if None in blocks:  # per-token activations
        return [open_with_float_products(path, provider) for path in paths]
    if not blocks or not provider.rounds_activations or any(path.suffix == SUFFIX for path in paths):
        # Prepacking would copy every weight, and let onnxruntime multiply quantized weights with rounded activations.
        return [open_session(path, provider, prepack=False) for path in paths]
    if provider.on_device:
        return [_open_with_float_activations(path, provider) for path in paths]
    products = BlockProducts()
    return [products.open(path) for path in paths]


def _open_with_float_activations(path: Path, provider: Provider) -> Any:
    """Open an `onnxruntime.InferenceSession` on a graph whose products in blocks may not round their activations."""
    model = inline_functions(load_onnx(path))
    for node in model.graph.node:
        for attribute in node.attribute:
            if (node.domain, node.op_type) == BLOCK_PRODUCT.key and attribute.name == "accuracy_level":
                attribute.i = FLOAT_ACTIVATIONS
    return open_session(path, provider, prepack=False, rewritten=Rewritten(model.SerializeToString(), {}))


def open_with_float_products(path: Path, provider: Provider) -> Any:
    """Open an `onnxruntime.InferenceSession` on a graph whose integer products are replaced by float64 ones.

    Products in blocks (MatMulNBits) do not round activations in it, either, since no weight is prepacked. Raises
    BundleError for a graph that onnxruntime cannot load.
    """
    model = inline_functions(load_onnx(path))
    replace_integer_products(model.graph)
    return open_rewritten(model, path, provider, {})


def open_rewritten(model: onnx.ModelProto, path: Path, provider: Provider, values: Mapping[str, Any]) -> Any:
    """Open a session on a model that stands in for the one of a file, node by node as it is.

    values: weights that the file lacks, by name, as `OrtValue`s. Raises BundleError for one that onnxruntime cannot
    load.
    """
    if any(tensor.name == REQUEST_LENGTH for tensor in model.graph.initializer):  # as the runtime opens it
        model.MergeFromString(added_input(REQUEST_LENGTH))
    try:
        return open_model(model, path.parent, provider, optimise=False, values=values)
    except onnxruntime_errors() as error:
        raise BundleError(f"onnxruntime cannot load {path} with float products: {first_line(error)}") from error


def replace_integer_products(graph: onnx.GraphProto) -> int:
    """Replace integer products, and the rounding of their inputs, in place; return the number of products."""
    count = _replace(graph)
    graph.initializer.extend(numpy_helper.from_array(np.array(bound), name) for name, bound in BOUNDS.items())
    return count


def _replace(graph: onnx.GraphProto) -> int:
    """Replace the products of one graph and of the branches in it; return their number."""
    branches = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    within = sum(map(_replace, branches))
    roundings = {node.output[0]: node for node in graph.node if node.op_type == ROUNDING.name}
    symmetric = INTEGER_PRODUCT.place("b_zero_point")  # inputs of products without zero points of weights, and bias
    products = [
        node
        for node in graph.node
        if node.op_type == INTEGER_PRODUCT.name and len(node.input) <= symmetric and node.input[0] in roundings
    ]
    formulas = {node.output[0]: _product(node) for node in products}
    formulas |= {node.input[0]: _steps(roundings[node.input[0]]) for node in products}
    nodes = [each for node in graph.node for each in formulas.get(node.output[0], [node])]
    del graph.node[:]
    graph.node.extend(nodes)
    return len(products) + within


class _Formula:
    """The nodes that replace one node, in topological order."""

    def __init__(self, node: NodeProto):
        self.nodes: list[NodeProto] = []
        self._prefix = f"{node.output[0]}/float_product"

    def __call__(self, op: str, *inputs: str, output: str = "", to: int | None = None) -> str:
        """Add a node; return the name of its output. to: the type of a Cast."""
        name = output or f"{self._prefix}/{op}_{len(self.nodes)}"
        node = helper.make_node(op, inputs, [name])
        if to is not None:
            node.attribute.append(helper.make_attribute("to", to))
        self.nodes.append(node)
        return name

    def wide(self, value: str) -> str:
        """Cast a value to float64; return its name."""
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
