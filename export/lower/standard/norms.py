"""Lower RMS norms to ONNX's RMSNormalization; a residual sum inside a norm becomes an Add in front of it.

It requires nothing.
"""

from typing import Any

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_each
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions


def lower_norms(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every norm."""
    nodes = canonical_nodes(model, "RMSNorm", "SkipRMSNorm", "SkipLayerNorm")
    return replace_each("norms", nodes, "emitted by lower/standard", _norm)


def _norm(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
    inputs = canonical_inputs(node)
    options: dict[str, Any] = {"axis": -1, "epsilon": node.attributes.get_float("epsilon")}
    x, weight, skipped = inputs["x"], inputs.weight, node.op_type != "RMSNorm"
    total = emit("Add", x, inputs.skip) if skipped else x
    if node.op_type == "SkipLayerNorm":
        normed = emit("LayerNormalization", total, weight, inputs.bias, **options)
    else:
        weight = emit.constant([1.0] * dim(x, -1), dtype_of(x)) if weight is None else weight
        normed = emit("RMSNormalization", total, weight, **options)
    return [normed, total] if skipped else [normed]
