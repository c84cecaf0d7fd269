"""Fold the rotation of queries and keys into the attention op.

    query → RotaryEmbedding ─┐
    key ──→ RotaryEmbedding ─┴→ GroupQueryAttention     becomes     GroupQueryAttention(…, cos, sin)

Requires that both rotations use the same tables, pairing and positions; that the positions are `TokenPositions` of the
attention mask, because the op computes these positions itself; and that `accepts(head_dim, rotary_dim)`, the limits of
the kernel, holds.
"""

from collections.abc import Callable

import onnx_ir as ir

from edgeformer.export.graph.canonical import DOMAIN, canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, head_dim_of, producer, remove_if_unused
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import record_change


def fold_rotary(model: ir.Model, accepts: Callable[[int, int], bool] = lambda head_dim, rotary_dim: True) -> PassReport:
    """Fold every pair of rotations that meets the requirements."""
    report = PassReport("fold_rotary")
    for attention in canonical_nodes(model, "GroupQueryAttention"):
        inputs = canonical_inputs(attention)
        query, key = (producer(value, "RotaryEmbedding", DOMAIN) for value in (inputs.query, inputs.key))
        if query is None and key is None:
            continue
        if query is None or key is None:
            report.miss(attention, "only one of query and key is rotated")
            continue
        rotation = canonical_inputs(query)
        interleaved = query.attributes.get_int("interleaved")
        if key.inputs[1:] != query.inputs[1:] or key.attributes.get_int("interleaved") != interleaved:
            report.miss(attention, "query and key are rotated differently")
            continue
        positions = producer(rotation.positions, "TokenPositions", DOMAIN)
        if positions is None or canonical_inputs(positions).attention_mask is not inputs.attention_mask:
            report.miss(attention, "positions are not the cache positions of the attention mask")
            continue
        head_dim, rotary_dim = head_dim_of(attention), 2 * dim(rotation.cos, -1)
        if not accepts(head_dim, rotary_dim):
            report.miss(attention, f"no kernel rotates {rotary_dim} of {head_dim} elements")
            continue
        inputs.set(query=rotation.x, key=canonical_inputs(key).x, cos=rotation.cos, sin=rotation.sin)
        attention.attributes["rotary_interleaved"] = ir.AttrInt64("rotary_interleaved", interleaved)
        remove_if_unused(model, query, key, positions)
        record_change(attention, "RoPE folded in by fold_rotary")
        report.fire(attention)
    return report
