"""Lower rotations that attention does not do by itself to ONNX Runtime's RotaryEmbedding.

These are rotations by positions of several axes, and of sizes that attention does not take (fold_rotary). Requires the
CPU provider. For 285 tokens of 16 heads of 128, in float32, the node takes a tenth of the time of the function body,
whose Slices, products and Concat each go over all heads.
"""

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB
from edgeformer.export.graph.builder import NodeBuilder, replace_each
from edgeformer.export.graph.cache_forms import positions_of_rows
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions


def lower_rotary(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every rotation where the provider's kernel was tried."""
    nodes = canonical_nodes(model, "RotaryEmbedding") if lowering.rules.rotates else []
    return replace_each("RotaryEmbedding", nodes, "emitted by lower/ort", _rotary)


def _rotary(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
    inputs, attributes = canonical_inputs(node), node.attributes
    x = inputs["x"]
    rotated = emit(
        "RotaryEmbedding", x, positions_of_rows(emit, inputs["positions"], x), inputs["cos"], inputs["sin"],
        domain=CONTRIB, num_heads=attributes.get_int("num_heads"), interleaved=attributes.get_int("interleaved"),
        rotary_embedding_dim=2 * dim(inputs["cos"], -1),
    )  # fmt: skip
    return [rotated]
