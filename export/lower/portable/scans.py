"""Refuse ops that primitives compute token by token, for a provider without control flow."""

import onnx_ir as ir

from edgeformer.errors import ExportError
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions


def refuse_scans(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Change nothing. Raises ExportError for linear attention, whose body is a Scan, where the provider has none."""
    if not lowering.rules.loops and canonical_nodes(model, "LinearAttention"):
        raise ExportError(
            f"the op set {lowering.ops} computes recurrent layers by a Scan, which onnxruntime runs on the CPU for "
            f"provider {lowering.provider}, in every layer. Choose the op set ort."
        )
    return PassReport("LinearAttention")
