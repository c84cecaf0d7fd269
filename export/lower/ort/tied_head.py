"""A head that shares the embedding's weight reads it transposed instead of copying it, by FusedMatMul."""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import tied_products
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.names import CONTRIB
from edgeformer.export.passes import PassReport


def lower_tied_head(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Read every weight that is stored untransposed as it is stored."""
    report = PassReport("tied_head")
    for node, weight in tied_products(model):
        report.fire(node)
        emit = NodeBuilder(node.name or "")
        product = emit("FusedMatMul", node.inputs[0], weight, domain=CONTRIB, transA=0, transB=1)
        replace_node(node, emit, [product])
    return report
