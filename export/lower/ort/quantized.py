"""Lower quantized products and embedding gathers to MatMulNBits, MatMulIntegerToFloat and GatherBlockQuantized.

MatMulNBits rounds x to 8 bits per block and multiplies integers (`accuracy_level` 4); in float32 it would be several
times slower. With per-channel scales, x is rounded per token (per_token_products.py). It requires nothing.
"""

from typing import Any

import onnx_ir as ir

from edgeformer.contract.ops import BLOCK_GATHER, BLOCK_PRODUCT, CONTRIB
from edgeformer.export.graph.builder import NodeBuilder, replace_each
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.per_token_products import PerTokenProducts
from edgeformer.export.lower.ort.primitive_gather import primitive_gather

INT8_ACTIVATIONS = 4
"""Value of MatMulNBits' attribute accuracy_level for int8 activations."""

DEFAULT_BITS = 4
"""The bits that GatherBlockQuantized has without the attribute, which onnxruntime 1.22 does not know."""


def lower_quantized(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every quantized product and gather."""
    per_token = PerTokenProducts()

    def emit_quantized(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
        gathers, block = node.op_type == "QuantizedGather", node.attributes.get_int("block")
        if gathers and lowering.place.primitive_gathers:
            return [primitive_gather(emit, node)]
        if block == 0:
            return [per_token(emit, node)]
        bits = node.attributes.get_int("bits")
        options: dict[str, Any] = {"bits": bits, "block_size": block}
        if gathers:
            op = BLOCK_GATHER.name
            options |= {"gather_axis": 0, "quantize_axis": 1}
            if bits == DEFAULT_BITS:
                del options["bits"]
        else:
            op = BLOCK_PRODUCT.name
            sizes = {"K": node.attributes.get_int("inputs"), "N": node.attributes.get_int("outputs")}
            options = {**sizes, **options, "accuracy_level": INT8_ACTIVATIONS}
        return [emit(op, *node.inputs, domain=CONTRIB, **options)]

    nodes = canonical_nodes(model, "QuantizedMatMul", "QuantizedGather")
    return replace_each("quantized", nodes, "emitted by lower/ort", emit_quantized)
