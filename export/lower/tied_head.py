"""A head that shares the embedding's weight reads it transposed, instead of copying it, by ONNX's Gemm.

MatMul(x [B, S, E], Transpose(W [V, E])) becomes Gemm over the rows of x, which has two axes only.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import dim, tied_products
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.passes import PassReport


def lower_tied_head(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Read every weight that is stored untransposed as it is stored."""
    report = PassReport("tied_head")
    for node, weight in tied_products(model):
        report.fire(node)
        x = node.inputs[0]
        emit = NodeBuilder(node.name or "")
        rows = emit("Reshape", x, emit.constant([-1, dim(weight, 1)]))
        product = emit("Gemm", rows, weight, transB=1)
        assert x is not None and x.shape is not None
        sizes = emit(
            "Concat", emit("Shape", x, start=0, end=x.shape.rank() - 1), emit.constant([dim(weight, 0)]), axis=0
        )
        replace_node(node, emit, [emit("Reshape", product, sizes)])
    return report
