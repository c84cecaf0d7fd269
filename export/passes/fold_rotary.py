"""Fold the rotation of queries and keys into the attention op.

    query → RotaryEmbedding ─┐
    key ──→ RotaryEmbedding ─┴→ GroupQueryAttention     becomes     GroupQueryAttention(…, cos, sin)
    query → RotaryEmbedding ──→ SharedAttention         becomes     SharedAttention(…, cos, sin)

Requires that both rotations use the same tables, pairing and positions; that the positions are `TokenPositions` of the
attention mask, because the op computes these positions itself; and that `accepts(head_dim, rotary_dim)`, the limits of
the kernel, holds. The keys of a shared attention were rotated by the layer that wrote them.
"""

from collections.abc import Callable

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, head_dim_of, producer, remove_if_unused
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import record_change


def fold_rotary(model: ir.Model, accepts: Callable[[int, int], bool] = lambda head_dim, rotary_dim: True) -> PassReport:
    """Fold every rotation that meets the requirements."""
    report = PassReport("fold_rotary")
    for attention in canonical_nodes(model, "GroupQueryAttention", "SharedAttention"):
        inputs = canonical_inputs(attention)
        own = {"query": inputs.query} | ({"key": inputs.key} if attention.op_type == "GroupQueryAttention" else {})
        rotations = {name: producer(value, "RotaryEmbedding", DOMAIN) for name, value in own.items()}
        found = [node for node in rotations.values() if node is not None]
        if not found:
            continue
        reason = "only one of query and key is rotated" if len(found) < len(own) else _obstacle(attention, found)
        rotation = canonical_inputs(found[0])
        head_dim, rotary_dim = head_dim_of(attention), 2 * dim(rotation.cos, -1)
        if reason is None and not accepts(head_dim, rotary_dim):
            reason = f"no kernel rotates {rotary_dim} of {head_dim} elements"
        if reason is not None:
            report.miss(attention, reason)
            continue
        positions, interleaved = rotation["positions"].producer(), found[0].attributes.get_int("interleaved")
        inputs.set(cos=rotation.cos, sin=rotation.sin)
        inputs.set(**{name: canonical_inputs(node).x for name, node in rotations.items() if node is not None})
        attention.attributes["rotary_interleaved"] = ir.AttrInt64("rotary_interleaved", interleaved)
        remove_if_unused(model, *found, positions)
        record_change(attention, "RoPE folded in by fold_rotary")
        report.fire(attention)
    return report


def _obstacle(attention: ir.Node, rotations: list[ir.Node]) -> str | None:
    """Return why an attention cannot rotate by itself as these nodes do, or None where it can."""
    first, last = rotations[0], rotations[-1]
    pairing = (node.attributes.get_int("interleaved") for node in (first, last))
    if first.inputs[1:] != last.inputs[1:] or len(set(pairing)) > 1:
        return "query and key are rotated differently"
    positions = producer(canonical_inputs(first).positions, "TokenPositions", DOMAIN)
    mask = canonical_inputs(attention).attention_mask
    if positions is None or canonical_inputs(positions).attention_mask is not mask:
        return "positions are not the cache positions of the attention mask"
    return None
