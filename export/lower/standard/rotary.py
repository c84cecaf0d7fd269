"""Rotations by ONNX's RotaryEmbedding. It requires nothing."""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.standard.attention import rotate
from edgeformer.export.passes import PassReport


def lower_rotary(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Use the op everywhere."""
    report = PassReport("RotaryEmbedding")
    for node in canonical_nodes(model, "RotaryEmbedding"):
        x, positions, cos, sin = node.inputs
        assert x is not None
        emit = NodeBuilder(node.name or "")
        attributes = node.attributes
        turned = rotate(
            emit, x, positions, cos, sin, attributes.get_int("num_heads"), attributes.get_int("interleaved")
        )
        report.fire(node)
        replace_node(node, emit, [turned])
    return report
