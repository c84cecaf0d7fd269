"""Lower rotations to ONNX's RotaryEmbedding. It requires nothing."""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_each
from edgeformer.export.graph.cache_forms import positions_of_rows
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions


def lower_rotary(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every rotation."""
    return replace_each(
        "RotaryEmbedding", canonical_nodes(model, "RotaryEmbedding"), "emitted by lower/standard", _rotary
    )


def _rotary(emit: NodeBuilder, node: ir.Node) -> list[ir.Value]:
    inputs, attributes = canonical_inputs(node), node.attributes
    heads, interleaved = attributes.get_int("num_heads"), attributes.get_int("interleaved")
    x = inputs["x"]
    positions = positions_of_rows(emit, inputs["positions"], x)
    return [rotate(emit, x, positions, (inputs["cos"], inputs["sin"]), heads, interleaved)]


def rotate(
    emit: NodeBuilder,
    x: ir.Value | None,
    positions: ir.Value | None,
    tables: tuple[ir.Value, ir.Value],
    num_heads: int,
    interleaved: int,
) -> ir.Value:
    """Rotate the heads of x [B, S, H·D]; tables: cos and sin [positions, R/2]."""
    return emit(
        "RotaryEmbedding", x, *tables, positions,
        num_heads=num_heads, interleaved=interleaved, rotary_embedding_dim=2 * dim(tables[0], -1),
    )  # fmt: skip
