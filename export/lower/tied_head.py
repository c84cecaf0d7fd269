"""Read the weight of a tied head as the embedding stores it, instead of storing it a second time.

    MatMul(x [B, S, E], Transpose(W [V, E]))     becomes     FusedMatMul(x, W, transB=1)                   in `ort`
                                                             Reshape → Gemm(x, W, transB=1) → Reshape      elsewhere

Gemm takes x with two axes only. It is that for WebGPU, too, which has no FusedMatMul.
"""

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB, PRODUCT
from edgeformer.export.graph.builder import NodeBuilder, replace_each
from edgeformer.export.graph.editing import dim, producer, streamed
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions


def lower_tied_head(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every product with a weight that is stored untransposed."""
    tied = [node for node in model.graph if _weight(node) is not None]
    product = _fused if lowering.ops == "ort" and lowering.rules.transposes_in_products else _gemm
    return replace_each("tied_head", tied, f"emitted by lower/{lowering.ops}", product)


def _weight(node: ir.Node) -> ir.Value | None:
    """The weight W of a MatMul(x, Transpose(W))."""
    transpose = producer(node.inputs[1], "Transpose") if (node.domain, node.op_type) == PRODUCT.key else None
    return transpose.inputs[0] if transpose is not None and streamed(transpose.inputs[0]) is not None else None


def _fused(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
    return [emit("FusedMatMul", node.inputs[0], _weight(node), domain=CONTRIB, transA=0, transB=1)]


def _gemm(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
    x, weight = node.inputs[0], _weight(node)
    assert x is not None and x.shape is not None
    rows = emit("Reshape", x, emit.constant([-1, dim(weight, 1)]))
    product = emit("Gemm", rows, weight, transB=1)
    batch = emit("Shape", x, start=0, end=x.shape.rank() - 1)
    return [emit("Reshape", product, emit("Concat", batch, emit.constant([dim(weight, 0)]), axis=0))]
