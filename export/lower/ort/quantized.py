"""Products with and lookups in quantized matrices, by MatMulNBits, GatherBlockQuantized and MatMulIntegerToFloat.

MatMulNBits rounds x to 8 bits, block by block, to multiply integers (`accuracy_level` 4): in float32 it would be
several times slower. With one scale an output, integers are multiplied as they are: x / m · 127 is rounded, m being
the largest magnitude of a token, and m goes into the result again. What several products read is rounded once: equal
nodes are merged.
"""

import onnx_ir as ir

from edgeformer.export.emit import Emitter, replace_node
from edgeformer.export.graph import canonical_nodes, dtype_of
from edgeformer.export.lower.ort.names import CONTRIB
from edgeformer.export.lower.ort.plain_lookup import plain_lookup
from edgeformer.export.lower.target import Target
from edgeformer.export.passes import PassReport

INT8_ACTIVATIONS = 4

SMALLEST = 1e-30


def lower_quantized(model: ir.Model, target: Target) -> PassReport:
    """Use the kernels for every quantized matrix. They require nothing."""
    report = PassReport("quantized")
    for node in canonical_nodes(model, "QuantizedMatMul", "QuantizedGather"):
        report.fire(node)
        emit = Emitter(node.name or "")
        bits, block = node.attributes.get_int("bits"), node.attributes.get_int("block")
        if node.op_type == "QuantizedGather" and target.plain_lookups:
            new = plain_lookup(emit, node)
        elif block == 0:
            new = _by_token(emit, node)
        elif node.op_type == "QuantizedMatMul":
            new = emit(
                "MatMulNBits", *node.inputs,
                domain=CONTRIB,
                K=node.attributes.get_int("inputs"),
                N=node.attributes.get_int("outputs"),
                bits=bits,
                block_size=block,
                accuracy_level=INT8_ACTIVATIONS,
            )  # fmt: skip
        else:
            new = emit(
                "GatherBlockQuantized", *node.inputs,
                domain=CONTRIB,
                bits=bits,
                block_size=block,
                gather_axis=0,
                quantize_axis=1,
            )  # fmt: skip
        replace_node(node, emit, [new])
    return report


def _by_token(emit: Emitter, node: ir.Node) -> ir.Value:
    x, integers, scales = node.inputs[:3]
    dtype = dtype_of(x)
    largest = emit("ReduceMax", emit("Abs", x), emit.constant([-1]), keepdims=1)
    # A token of zeros stays one.
    largest = emit("Max", largest, emit.constant(SMALLEST, dtype))
    step, zero = emit.constant(1 / 127, dtype), emit.constant(128, ir.DataType.UINT8)
    steps = emit("QuantizeLinear", emit("Div", x, largest), step, zero)
    product = emit("MatMulIntegerToFloat", steps, integers, step, scales, zero, domain=CONTRIB)
    return emit("Mul", product, largest)
