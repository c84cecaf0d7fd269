"""The passes for graphs of modules that were not written for our ops, in their order."""

import onnx_ir as ir

from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.passes.plain_ops import plain_ops
from edgeformer.export.passes.simplify_layout import simplify_layout
from edgeformer.export.passes.widen_rotary import widen_rotary


def canonicalize(model: ir.Model) -> list[PassReport]:
    """Bring a foreign graph into the form that the other passes know; a graph of our own modules is left as it is."""
    plain, layout, rotary = plain_ops(model), simplify_layout(model), widen_rotary(model)
    if rotary.changed:
        layout.changed += simplify_layout(model).changed
    return [plain, layout, rotary]
