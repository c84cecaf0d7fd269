"""RMS norms by ONNX's RMSNormalization; where a norm has its residual sum inside, the sum is taken out first."""

from typing import Any

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.passes import PassReport


def lower_norms(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Use the op everywhere."""
    report = PassReport("norms")
    for node in canonical_nodes(model, "RMSNorm", "SkipRMSNorm", "SkipLayerNorm"):
        emit = NodeBuilder(node.name or "")
        options: dict[str, Any] = {"axis": -1, "epsilon": node.attributes.get_float("epsilon")}
        x, skip, weight, bias = _parts(node)
        total = emit("Add", x, skip) if skip is not None else x
        if node.op_type == "SkipLayerNorm":
            normed = emit("LayerNormalization", total, weight, bias, **options)
        else:
            weight = emit.constant([1.0] * dim(x, -1), dtype_of(x)) if weight is None else weight
            normed = emit("RMSNormalization", total, weight, **options)
        report.fire(node)
        replace_node(node, emit, [normed] if skip is None else [normed, total])  # type: ignore[list-item]
    return report


def _parts(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None, ir.Value | None]:
    """x, what is added to it first, weight, bias."""
    first, second, third, fourth = [*node.inputs, None, None, None][:4]
    return (first, None, second, None) if node.op_type == "RMSNorm" else (first, second, third, fourth)
