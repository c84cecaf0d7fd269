"""How a graph keeps its caches, in ONNX primitives. `CacheForm` says what each form means to a client.

any      the past [B, K, P, D] is padded to T where it is shorter, then written to at the positions of the new tokens
static   the same without the padding: P is the capacity, and past and present may be one buffer
dynamic  the new tokens are concatenated to the past: P + S = T
"""

import onnx_ir as ir

from edgeformer.contract.tensors import CacheForm
from edgeformer.export.graph.builder import NodeBuilder

INT64_MAX = 2**63 - 1
"""End of a Slice that reads to the end of an axis: the largest int64."""


def key_positions(emit: NodeBuilder, attention_mask: ir.Value, form: CacheForm) -> ir.Value:
    """Return the positions of the tokens in the cache, int64 [B, T]; those of slots with padding have no meaning."""
    if form == "dynamic":
        # A token's position is the number of tokens before it. Padding on the left gets 0, which every table has.
        before = emit("Sub", emit("CumSum", attention_mask, emit.constant(1)), emit.constant(1))
        return emit("Max", before, emit.constant(0))
    total = emit("Squeeze", emit("Shape", attention_mask, start=1, end=2))
    slots = emit("Range", emit.constant(0), total, emit.constant(1))
    return emit("Expand", slots, emit("Shape", attention_mask))


def token_positions(emit: NodeBuilder, attention_mask: ir.Value, new: ir.Value, form: CacheForm) -> ir.Value:
    """Return the positions of the new tokens, int64 [B, S]; new: S as int64 [1]."""
    if form == "dynamic":
        ends = emit.constant([INT64_MAX])
        return emit("Slice", key_positions(emit, attention_mask, form), emit("Neg", new), ends, emit.constant([1]))
    length = emit("ReduceSum", attention_mask, emit.constant([1]), keepdims=1)  # [B, 1]
    start = emit("Max", emit("Sub", length, new), emit.constant(0))  # [B, 1]
    steps = emit("Range", emit.constant(0), emit("Squeeze", new), emit.constant(1))  # [S]
    return emit("Add", start, steps)


def positions_of_rows(emit: NodeBuilder, positions: ir.Value, x: ir.Value) -> ir.Value:
    """Return positions [B, S] of the rows of x [B, S, …], which may share those of one row, [1, S].

    Kernels that rotate take no others, where the canonical op broadcasts.
    """
    if positions.shape is not None and x.shape is not None and positions.shape[0] == x.shape[0]:
        return positions
    return emit("Expand", positions, emit("Shape", x, start=0, end=2))


def token_mask(emit: NodeBuilder, attention_mask: ir.Value, new: ir.Value, form: CacheForm) -> ir.Value:
    """Return which new tokens are tokens and not padding, bool [B, S]; new: S as int64 [1]."""
    if form == "dynamic":
        ends = emit.constant([INT64_MAX])
        columns = emit("Slice", attention_mask, emit("Neg", new), ends, emit.constant([1]))
        return emit("Cast", columns, to=ir.DataType.BOOL)
    length = emit("ReduceSum", attention_mask, emit.constant([1]), keepdims=1)  # [B, 1]
    return emit("Less", emit("Range", emit.constant(0), emit("Squeeze", new), emit.constant(1)), length)


def store(
    emit: NodeBuilder, past: ir.Value, new: ir.Value, positions: ir.Value, total: ir.Value, form: CacheForm
) -> ir.Value:
    """Return the present: past [B, K, P, D] with new [B, K, S, D] written at positions int64 [B, S].

    total: T as int64 [1].
    """
    if form == "dynamic":
        return emit("Concat", past, new, axis=2)
    if form == "any":
        room = emit("Max", emit("Sub", total, emit("Shape", past, start=2, end=3)), emit.constant([0]))
        zeros = emit.constant([0, 0, 0, 0, 0, 0]), emit.constant([0])
        # Pad takes 4 starts, then 4 ends; the end of axis 2 is the 7th.
        past = emit("Pad", past, emit("Concat", zeros[0], room, zeros[1], axis=0))
    slots = emit("Expand", emit("Unsqueeze", positions, emit.constant([1, 3])), emit("Shape", new))
    return emit("ScatterElements", past, slots, new, axis=2)
