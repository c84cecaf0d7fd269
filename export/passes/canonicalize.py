"""Bring the graph of a module that was not written for our ops into the form that the other passes match.

The graph of one of our own modules has this form already and stays as it is.
"""

import onnx_ir as ir

from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.passes.replace_rare_ops import replace_rare_ops
from edgeformer.export.passes.simplify_layout import simplify_layout
from edgeformer.export.passes.widen_rotary import widen_rotary


def canonicalize(model: ir.Model) -> list[PassReport]:
    """Run the canonicalizing passes in their order."""
    rare, layout, rotary = replace_rare_ops(model), simplify_layout(model), widen_rotary(model)
    if rotary.changed:
        layout.changed += simplify_layout(model).changed
    return [rare, layout, rotary]
