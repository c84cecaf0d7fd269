"""Rotations by ONNX's RotaryEmbedding. It requires nothing."""

import onnx_ir as ir

from edgeformer.export.emit import Emitter, replace_node
from edgeformer.export.graph import canonical_nodes
from edgeformer.export.lower.standard.attention import rotate
from edgeformer.export.lower.target import Target
from edgeformer.export.passes import PassReport


def lower_rotary(model: ir.Model, target: Target) -> PassReport:
    """Use the op everywhere."""
    report = PassReport("RotaryEmbedding")
    for node in canonical_nodes(model, "RotaryEmbedding"):
        x, positions, cos, sin = node.inputs
        assert x is not None
        emit = Emitter(node.name or "")
        attributes = node.attributes
        turned = rotate(
            emit, x, positions, cos, sin, attributes.get_int("num_heads"), attributes.get_int("interleaved")
        )
        report.fire(node)
        replace_node(node, emit, [turned])
    return report
