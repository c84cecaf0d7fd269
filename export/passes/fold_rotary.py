"""Rotate queries and keys inside the attention op.

    query → RotaryEmbedding ─┐
    key ──→ RotaryEmbedding ─┴→ GroupQueryAttention     becomes     GroupQueryAttention(…, cos, sin)

Requires that both rotations use the same tables, pairing and positions, that the positions are `TokenPositions` of the
mask that the attention reads (the op computes those same positions itself), and that `accepts(head_dim, rotary_dim)`,
the target's kernel, takes these sizes.
"""

from collections.abc import Callable

import onnx_ir as ir

from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.editing import canonical_nodes, dim, head_dim_of, producer, remove_if_unused
from edgeformer.export.graph.pass_report import PassReport


def fold_rotary(model: ir.Model, accepts: Callable[[int, int], bool] = lambda head_dim, rotary_dim: True) -> PassReport:
    """Fold every pair of rotations that meets the requirements."""
    report = PassReport("fold_rotary")
    for attention in canonical_nodes(model, "GroupQueryAttention"):
        query, key = (producer(value, "RotaryEmbedding", DOMAIN) for value in attention.inputs[:2])
        if query is None and key is None:
            continue
        if query is None or key is None:
            report.miss(attention, "only one of query and key is rotated")
            continue
        positions, cos, sin = query.inputs[1:]
        interleaved = query.attributes.get_int("interleaved")
        if key.inputs[1:] != query.inputs[1:] or key.attributes.get_int("interleaved") != interleaved:
            report.miss(attention, "query and key are rotated differently")
            continue
        source = producer(positions, "TokenPositions", DOMAIN)
        if source is None or source.inputs[0] is not attention.inputs[5]:
            report.miss(attention, "positions are not the cache positions of the attention mask")
            continue
        head_dim, rotary_dim = head_dim_of(attention), 2 * dim(cos, -1)
        if not accepts(head_dim, rotary_dim):
            report.miss(attention, f"no kernel rotates {rotary_dim} of {head_dim} elements")
            continue
        attention.resize_inputs(max(8, len(attention.inputs)))
        for index, value in enumerate((query.inputs[0], key.inputs[0])):
            attention.replace_input_with(index, value)
        attention.replace_input_with(6, cos)
        attention.replace_input_with(7, sin)
        attention.attributes["rotary_interleaved"] = ir.AttrInt64("rotary_interleaved", interleaved)
        remove_if_unused(model, query, key, source)
        report.fire(attention)
    return report
