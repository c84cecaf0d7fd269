"""Replace quantized products of a graph by float32 products of what their integers mean, so that runs take less time.

    y = MatMulNBits(x, integers, scales, zero points)   becomes   y = MatMul(x, W),  W = (integers − zeros) · scales

Without prepacked weights, onnxruntime dequantizes each matrix in every run, and a verification has many runs of
one token. Here each is dequantized once, by numpy. That onnxruntime reads the same matrix out of the file is proved by
its own kernel: both products of PROBES normal random rows are compared, and where they differ the node stays as it is.
"""

import math
from collections.abc import Iterator, Mapping
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
        stored = _constants(model.graph)
        products = [node for graph in _graphs(model.graph) for node in graph.node if _is_readable(node, stored)]
        fitting = [node for node in products if self._fits(node, stored, path.parent)]
        replaced = self._replace(fitting, _probed(path, model, fitting))
        for name in sorted(replaced):
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=replaced[name].shape)
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=name)
            model.graph.initializer.append(tensor)
        ort = onnxruntime()
        return {name: ort.OrtValue.ortvalue_from_numpy(matrix) for name, matrix in replaced.items()}

    def _fits(self, node: NodeProto, stored: Mapping[str, TensorProto], folder: Path) -> bool:
        """Return whether there is memory for the matrix of a product, which is dequantized then."""
        name = _name(node)
        if name in self._matrices:
            return True
        size = 4 * _attribute(node, "K") * _attribute(node, "N")
        if self._bytes + size > LARGEST:
            return False
        self._bytes += size
        self._matrices[name] = dequantized(node, stored, folder)
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


def _constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Return the stored tensors by the names that nodes read them by: their own, or those of casts to float32."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return stored | {node.output[0]: stored[node.input[0]] for node in _casts(graph, stored)}


def _casts(graph: onnx.GraphProto, stored: Mapping[str, TensorProto]) -> list[NodeProto]:
    """Return the nodes that cast float16 tensors among those that are stored to float32."""
    return [
        node
        for node in graph.node
        if node.op_type == "Cast"
        and _attribute(node, "to") == TensorProto.FLOAT
        and node.input[0] in stored
        and stored[node.input[0]].data_type == TensorProto.FLOAT16
    ]


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the branches in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _is_readable(node: NodeProto, stored: Mapping[str, TensorProto]) -> bool:
    """Return whether a node is a product of float32 by stored integers of 4 or 8 bits, without order and bias.

    A node whose weights have other sizes than it says is none: onnxruntime tells what it makes of it.
    """
    if (node.domain, node.op_type) != BLOCK_PRODUCT.key or any(node.input[4:]):
        return False
    read = [stored.get(name) for name in node.input[1:4] if name]
    kinds = ((TensorProto.UINT8,), (TensorProto.FLOAT, TensorProto.FLOAT16), (TensorProto.UINT8,))
    bits, block, outputs = (_attribute(node, name) for name in ("bits", "block_size", "N"))
    if bits not in (4, 8) or block < 1:
        return False
    scales = stored.get(node.input[2])
    if scales is not None and scales.data_type == TensorProto.FLOAT16 and scales.name == node.input[2]:
        return False  # a product of float16: no cast widens its scales
    blocks = -(-_attribute(node, "K") // block)
    sizes = (outputs * blocks * block * bits // 8, outputs * blocks, outputs * -(-blocks * bits // 8))
    return all(
        tensor is not None and tensor.data_type in allowed and math.prod(tensor.dims) == size
        for tensor, allowed, size in zip(read, kinds, sizes, strict=False)
    )


def _attribute(node: NodeProto, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 4 if name == "bits" else 0)


def _name(node: NodeProto) -> str:
    """Return the name of the dequantized matrix of a product."""
    return f"{node.input[1]}/dequantized"


def dequantized(node: NodeProto, stored: Mapping[str, TensorProto], folder: Path) -> Matrix:
    """Return the matrix [K, N] that a product multiplies by. folder: of its graph.

    Source: onnxruntime/core/graph/contrib_ops/contrib_defs.cc, MatMulNBits.
    """
    inputs, outputs, bits, block = (_attribute(node, name) for name in ("K", "N", "bits", "block_size"))
    blocks = -(-inputs // block)

    def read(name: str) -> NDArray[Any]:
        return numpy_helper.to_array(stored[name], str(folder))

    def unpacked(packed: NDArray[np.uint8], length: int) -> Tensor:
        """Return integers [length, N]; of two in a byte, the lower half is the first."""
        columns = torch.from_numpy(packed.reshape(outputs, -1).copy()).T.contiguous()  # the bytes of an input together
        return columns if bits == 8 else torch.stack((columns & 15, columns >> 4), 1).flatten(0, 1)[:length]

    # PyTorch computes with all cores; integers are transposed, and not the floats, which are eight times as large.
    values = unpacked(read(node.input[1]), blocks * block).float().unflatten(0, (blocks, block))
    scales = torch.from_numpy(read(node.input[2]).astype(np.float32)).reshape(outputs, blocks).T.contiguous()
    zeros = torch.tensor(2.0 ** (bits - 1))
    if len(node.input) > 3 and node.input[3]:
        zeros = unpacked(read(node.input[3]), blocks).float().unsqueeze(1)
    matrix: Matrix = values.sub_(zeros).mul_(scales.unsqueeze(1)).flatten(0, 1)[:inputs].numpy()
    return matrix


def _rows(inputs: int) -> Matrix:
    """Return the random rows of probes: float32 [PROBES, inputs]."""
    return np.random.default_rng(inputs).standard_normal((PROBES, inputs), np.float32)


def _probed(path: Path, model: onnx.ModelProto, products: list[NodeProto]) -> dict[str, Matrix]:
    """Return the products of random rows as onnxruntime's own kernel computes them out of the file, by output."""
    if not products:
        return {}
    probe = onnx.ModelProto(ir_version=model.ir_version)
    probe.opset_import.extend(model.opset_import)
    if all(each.domain != CONTRIB for each in probe.opset_import):
        probe.opset_import.add(domain=CONTRIB, version=1)
    graph, sizes = probe.graph, set[int]()
    read: set[str] = set()
    graph.name = "probes"
    for node in products:
        added = graph.node.add()
        added.CopyFrom(node)
        added.input[0] = f"rows of {_attribute(node, 'K')}"
        sizes.add(_attribute(node, "K"))
        read.update(filter(None, added.input[1:]))
        graph.output.add(name=node.output[0])
    casts = [node for node in _casts(model.graph, _constants(model.graph)) if node.output[0] in read]
    for place, node in enumerate(casts):
        graph.node.insert(place, node)
    read.update(node.input[0] for node in casts)
    shapes = {f"rows of {size}": [PROBES, size] for size in sizes}
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph.initializer.extend(each for each in model.graph.initializer if each.name in read)
    try:
        session = open_model(probe, path.parent, CPU, optimise=False)
        names = [output.name for output in graph.output]
        results = session.run(names, {f"rows of {size}": _rows(size) for size in sizes})
    except onnxruntime_errors() as error:
        raise BundleError(f"onnxruntime cannot run the products of {path}: {first_line(error)}") from error
    return dict(zip(names, results, strict=True))
