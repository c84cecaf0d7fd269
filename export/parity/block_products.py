"""Replace quantized products of a graph by float32 products of what their integers mean, so that runs take less time.

    y = MatMulNBits(x, integers, scales, zero points)   becomes   y = MatMul(x, W),  W = (integers − zeros) · scales

Without prepacked weights, onnxruntime dequantizes each matrix in every run, and a verification has many runs of
one token. Here each is dequantized once, by numpy. That onnxruntime reads the same matrix out of the file is proved by
its own kernel: both products of PROBES normal random rows are compared, and where they differ the node stays as it is.

What nodes make of stored tensors when a graph is loaded, float32 scales or unpacked integers, onnxruntime computes.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from edgeformer.contract.ops import BLOCK_PRODUCT, CONTRIB
from edgeformer.errors import BundleError
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity.locate.cut_graph import first_line, open_model
from edgeformer.manifest.providers import CPU
from edgeformer.runtime.sessions.session import Rewritten, onnxruntime, onnxruntime_errors, open_session

LARGEST = 2 * 2**30
"""Bytes of dequantized matrices in memory at most, over all graphs; products beyond it stay as they are."""

PROBES = 4
"""Random rows that both products are compared on."""

CLOSE = 1e-5
"""Largest difference of both, over the length of a row times that of a column of W. Float32 sums of the tested sizes
stay below it; one integer, zero point or scale that is off does not (tests/export/test_block_products.py)."""

Matrix = NDArray[np.float32]


class BlockProducts:
    """The dequantized matrices of the graphs of a bundle: graphs that share weights share them."""

    def __init__(self) -> None:
        self._matrices: dict[str, Matrix] = {}
        self._bytes = 0

    def open(self, path: Path) -> Any:
        """Open an `onnxruntime.InferenceSession` on an ONNX graph with float32 products, on the CPU.

        Raises BundleError for a graph that onnxruntime cannot load.
        """
        model = inline_functions(onnx.load(path, load_external_data=False))
        values = self.dequantize(model, path)
        return open_session(path, CPU, prepack=False, rewritten=Rewritten(model.SerializeToString(), values))

    def dequantize(self, model: onnx.ModelProto, path: Path) -> dict[str, Any]:
        """Replace the products of a graph without functions in place; return their matrices, as `OrtValue`s by name.

        path: of the file with its weights. Raises BundleError for products that onnxruntime cannot run.
        """
        constants = Constants(model, path.parent)
        products = [node for graph in _graphs(model.graph) for node in graph.node if _is_product(node, constants)]
        fitting = [node for node in products if self._fits(node, constants)]
        replaced = self._replace(fitting, _probed(path, constants, fitting))
        for name in sorted(replaced):
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=replaced[name].shape)
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=name)
            model.graph.initializer.append(tensor)
        ort = onnxruntime()
        return {name: ort.OrtValue.ortvalue_from_numpy(matrix) for name, matrix in replaced.items()}

    def _fits(self, node: NodeProto, constants: "Constants") -> bool:
        """Return whether a product can be read, and there is memory for its matrix, which is dequantized then."""
        name = _name(node)
        if name in self._matrices:
            return True
        size = 4 * _attribute(node, "K") * _attribute(node, "N")
        if self._bytes + size > LARGEST:
            return False
        read = [constants.read(each) for each in node.input[1:4] if each]
        if not _are_readable(node, read):
            return False
        self._bytes += size
        self._matrices[name] = dequantized(node, *read)
        return True

    def _replace(self, products: list[NodeProto], probed: Mapping[str, Matrix]) -> dict[str, Matrix]:
        """Replace the products whose probes agree, in place; return the matrices that they read."""
        matrices = {}
        for node in products:
            name, output = _name(node), node.output[0]
            matrix, rows = self._matrices[name], _rows(_attribute(node, "K"))
            lengths = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(matrix, axis=0)
            if output in probed and np.all(np.abs(probed[output] - rows @ matrix) <= CLOSE * lengths):
                matrices[name] = matrix
                node.CopyFrom(helper.make_node("MatMul", [node.input[0], name], [output], name=node.name))
        return matrices


class Constants:
    """The tensors that a graph without functions stores, and those that its nodes make of them alone.

    folder: of the graph's file.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path):
        self.model, self.folder = model, folder
        self._stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self._makers: dict[str, NodeProto] = {}
        for node in model.graph.node:
            if all(name in self for name in node.input if name):
                self._makers |= dict.fromkeys(node.output, node)

    def __contains__(self, name: str) -> bool:
        return name in self._stored or name in self._makers

    def read(self, name: str) -> NDArray[Any]:
        """Return a tensor, computed by onnxruntime unless it is stored."""
        if name in self._stored:
            return numpy_helper.to_array(self._stored[name], str(self.folder))
        alone = self.alone()
        alone.graph.output.add(name=name)
        self.add(alone, [name])
        found: NDArray[Any] = open_model(alone, self.folder, CPU, optimise=False).run([name], {})[0]
        return found

    def alone(self) -> onnx.ModelProto:
        """Return a model with an empty graph for nodes of this one."""
        model = onnx.ModelProto(ir_version=self.model.ir_version)
        model.opset_import.extend(self.model.opset_import)
        model.graph.name = "constants"
        return model

    def add(self, model: onnx.ModelProto, names: Iterable[str]) -> None:
        """Add tensors to another model, and the nodes that make them, before it has others."""
        nodes, stored = set[str](), set[str]()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in self._stored:
                stored.add(name)
            elif self._makers[name].output[0] not in nodes:
                nodes.add(self._makers[name].output[0])
                pending.extend(filter(None, self._makers[name].input))
        model.graph.node.extend(node for node in self.model.graph.node if node.output[0] in nodes)
        model.graph.initializer.extend(each for each in self.model.graph.initializer if each.name in stored)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the branches in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _is_product(node: NodeProto, constants: Constants) -> bool:
    """Return whether a node is a product by constant integers of 4 or 8 bits, without order and bias."""
    if (node.domain, node.op_type) != BLOCK_PRODUCT.key or any(node.input[4:]):
        return False
    known = all(name in constants for name in node.input[1:4] if name)
    return known and _attribute(node, "bits") in (4, 8) and _attribute(node, "block_size") > 0


def _are_readable(node: NodeProto, read: list[NDArray[Any]]) -> bool:
    """Return whether the integers, scales and zero points of a product have float32's types, and the sizes it says.

    Otherwise onnxruntime tells what it makes of them.
    """
    bits, block, outputs = (_attribute(node, name) for name in ("bits", "block_size", "N"))
    blocks = -(-_attribute(node, "K") // block)
    sizes = (outputs * blocks * block * bits // 8, outputs * blocks, outputs * -(-blocks * bits // 8))
    kinds = (np.uint8, np.float32, np.uint8)
    return all(each.dtype == kind and each.size == size for each, kind, size in zip(read, kinds, sizes, strict=False))


def _attribute(node: NodeProto, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 4 if name == "bits" else 0)


def _name(node: NodeProto) -> str:
    """Return the name of the dequantized matrix of a product."""
    return f"{node.input[1]}/dequantized"


def dequantized(
    node: NodeProto, integers: NDArray[np.uint8], scales: Matrix, zeros: NDArray[np.uint8] | None = None
) -> Matrix:
    """Return the matrix [K, N] that a product multiplies by.

    Source: onnxruntime/core/graph/contrib_ops/contrib_defs.cc, MatMulNBits.
    """
    inputs, outputs, bits, block = (_attribute(node, name) for name in ("K", "N", "bits", "block_size"))
    blocks = -(-inputs // block)

    def unpacked(packed: NDArray[np.uint8], length: int) -> Tensor:
        """Return integers [length, N]; of two in a byte, the lower half is the first."""
        columns = torch.from_numpy(packed.reshape(outputs, -1).copy()).T.contiguous()  # the bytes of an input together
        return columns if bits == 8 else torch.stack((columns & 15, columns >> 4), 1).flatten(0, 1)[:length]

    # PyTorch computes with all cores; integers are transposed, and not the floats, which are eight times as large.
    values = unpacked(integers, blocks * block).float().unflatten(0, (blocks, block))
    steps = torch.from_numpy(scales.copy()).reshape(outputs, blocks).T.contiguous()
    zero = torch.tensor(2.0 ** (bits - 1)) if zeros is None else unpacked(zeros, blocks).float().unsqueeze(1)
    matrix: Matrix = values.sub_(zero).mul_(steps.unsqueeze(1)).flatten(0, 1)[:inputs].numpy()
    return matrix


def _rows(inputs: int) -> Matrix:
    """Return the random rows of probes: float32 [PROBES, inputs]."""
    return np.random.default_rng(inputs).standard_normal((PROBES, inputs), np.float32)


def _probed(path: Path, constants: Constants, products: list[NodeProto]) -> dict[str, Matrix]:
    """Return the products of random rows as onnxruntime's own kernel computes them out of the file, by output."""
    if not products:
        return {}
    probe = constants.alone()
    if all(each.domain != CONTRIB for each in probe.opset_import):
        probe.opset_import.add(domain=CONTRIB, version=1)
    graph, sizes = probe.graph, {_attribute(node, "K") for node in products}
    constants.add(probe, {name for node in products for name in node.input[1:] if name})
    for node in products:
        added = graph.node.add()
        added.CopyFrom(node)
        added.input[0] = f"rows of {_attribute(node, 'K')}"
        graph.output.add(name=node.output[0])
    shapes = {f"rows of {size}": [PROBES, size] for size in sizes}
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    try:
        session = open_model(probe, path.parent, CPU, optimise=False)
        names = [output.name for output in graph.output]
        results = session.run(names, {f"rows of {size}": _rows(size) for size in sizes})
    except onnxruntime_errors() as error:
        raise BundleError(f"onnxruntime cannot run the products of {path}: {first_line(error)}") from error
    return dict(zip(names, results, strict=True))
