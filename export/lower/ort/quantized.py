"""Products with and lookups in quantized matrices, by MatMulNBits, MatMulIntegerToFloat and GatherBlockQuantized.

MatMulNBits rounds x to 8 bits, block by block, to multiply integers (`accuracy_level` 4): in float32 it would be
several times slower. With one scale an output, x is rounded token by token (by_token.py).
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.names import CONTRIB
from edgeformer.export.lower.ort.per_token_products import PerTokenProducts
from edgeformer.export.lower.ort.primitive_gather import primitive_gather
from edgeformer.export.passes import PassReport

INT8_ACTIVATIONS = 4


def lower_quantized(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Use the kernels for every quantized matrix. They require nothing."""
    report = PassReport("quantized")
    per_token = PerTokenProducts()
    for node in canonical_nodes(model, "QuantizedMatMul", "QuantizedGather"):
        report.fire(node)
        emit = NodeBuilder(node.name or "")
        bits, block = node.attributes.get_int("bits"), node.attributes.get_int("block")
        if node.op_type == "QuantizedGather" and lowering.primitive_gathers:
            new = primitive_gather(emit, node)
        elif block == 0:
            new = per_token(emit, node)
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
