"""Store integers of 3, 5 and 6 bits without the bits that they do not use, where their format says so.

    W.integers uint8 [N, B, n]      becomes      W.integers uint8 [N, B, stored, n / group] → Unpack6Bits

Products read 4 and 8 bits. The bytes that they read are computed when a graph is loaded, since runtimes fold constants:
such a format saves bytes of the file, and takes the memory and the time of the wider one. A function of the model
computes them (packing.py says how). Runs after the rules of the op set, which expect integers where the calls now are.
"""

from functools import partial, reduce

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN, UNPACK_BITS
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import add_initializer, remove_initializer, streamed
from edgeformer.export.graph.outlining import add_function
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.quantize.packing import PACKINGS
from edgeformer.export.quantize.quantized_tensor import QuantizedTensor
from edgeformer.manifest.quantization import Bits


def pack_integers(model: ir.Model) -> PassReport:
    """Pack the integers of all formats that leave bits of a byte unused."""
    report = PassReport("pack_integers")
    of_storage: dict[str, list[tuple[ir.Value, QuantizedTensor]]] = {}
    for value in model.graph.initializers.values():
        tensor = streamed(value)
        if (
            isinstance(tensor, QuantizedTensor)
            and tensor.part == "integers"
            and tensor.matrix.form.stored_bits in PACKINGS
        ):
            of_storage.setdefault(tensor.storage, []).append((value, tensor))
    for storage, read in of_storage.items():
        for value, _ in read:
            remove_initializer(model, value)
        emit, (_, tensor) = NodeBuilder(storage), read[0]
        function = _function(tensor.matrix.form.bits, model.opset_imports[""])
        add_function(model, function)
        content = emit(function.name, add_initializer(model, tensor.packed()), domain=DOMAIN)
        report.fire(emit.nodes[0])
        for value, tensor in read:
            # A table of embeddings may be read in rows that are not cut into blocks.
            rows = content if tensor.name == storage else emit("Reshape", content, emit.constant([0, -1]))
            rows.type, rows.shape = value.type, value.shape
            ir.convenience.replace_all_uses_with(value, rows)
        model.graph.insert_before(model.graph[0], emit.nodes)
    return report


def _function(bits: Bits, opset: int) -> ir.Function:
    """Return the function that makes bytes [N, B, n] of packed ones [N, B, stored, n / group]."""
    packing, packed, emit = PACKINGS[bits], ir.Value(name="packed"), NodeBuilder("unpack")

    def byte(number: int) -> ir.Value:
        return emit.constant(number, ir.DataType.UINT8)

    parts = emit.many("Split", packed, outputs=packing.stored, axis=2, num_outputs=packing.stored)
    found = [emit("BitwiseAnd", packed, byte(packing.kept))]
    for spread in packing.spread:
        moved = [
            emit("BitShift", emit("BitwiseAnd", parts[of], byte(mask)), byte(up), direction="LEFT")
            for of, mask, up in spread
        ]
        found.append(reduce(partial(emit, "BitwiseOr"), moved))
    integers = emit("Reshape", emit("Concat", *found, axis=2), emit.constant([0, 0, -1]))
    integers.name = "integers"
    graph = ir.Graph([packed], [integers], nodes=emit.nodes, opset_imports={"": opset}, name=UNPACK_BITS[bits])
    return ir.Function(DOMAIN, UNPACK_BITS[bits], graph=graph, attributes=[])
