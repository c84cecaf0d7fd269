"""Embedding gathers from quantized matrices in ONNX primitives: some builds of onnxruntime lack GatherBlockQuantized.

The integers are the tensor that products read. Where the head shares the embedding, a file does not need a second copy
of them, even in a format whose tensors cannot share bytes.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dtype_of


def primitive_gather(emit: NodeBuilder, node: ir.Node) -> ir.Value:
    """Return the rows (integer − zero point) · scale of a canonical QuantizedGather, for ids of any shape."""
    ids, inputs = node.inputs[1], node.attributes.get_int("inputs")
    tokens = emit("Reshape", ids, emit.constant([-1]))
    per_channel = node.attributes.get_int("block") == 0
    rows = (_gather_per_channel if per_channel else _gather_blocks)(emit, node, tokens)
    return emit("Reshape", rows, emit("Concat", emit("Shape", ids), emit.constant([inputs]), axis=0))


def _gather_per_channel(emit: NodeBuilder, node: ir.Node, tokens: ir.Value) -> ir.Value:
    """Rows [R, K] of int8 [K, N], with zero point 0 and a scale for each of N."""
    integers, _, scales = node.inputs
    columns = emit("Gather", integers, tokens, axis=1)
    rows = emit("Cast", emit("Transpose", columns, perm=[1, 0]), to=dtype_of(scales))
    return emit("Mul", rows, emit("Unsqueeze", emit("Gather", scales, tokens, axis=0), emit.constant([1])))


def _gather_blocks(emit: NodeBuilder, node: ir.Node, tokens: ir.Value) -> ir.Value:
    """Rows [R, B, L] of N, packed in bytes, with a scale for each of B blocks."""
    integers, _, scales, *zero_points = node.inputs
    bits, block, inputs = (node.attributes.get_int(name) for name in ("bits", "block", "inputs"))
    dtype, blocks = dtype_of(scales), inputs // block

    def gather(table: ir.Value | None) -> ir.Value:
        return emit("Gather", table, tokens, axis=0)

    rows = _unpack(emit, emit("Flatten", gather(integers), axis=1), bits)
    rows = emit("Cast", emit("Reshape", rows, emit.constant([-1, blocks, block])), to=dtype)
    last = emit.constant([2])
    zeros = emit.constant(1 << (bits - 1), dtype)
    if zero_points:
        unpacked = _unpack(emit, gather(zero_points[0]), bits)
        # The zero points of an odd number of blocks end with an unused half byte.
        stored = emit("Slice", unpacked, emit.constant([0]), emit.constant([blocks]), emit.constant([1]))
        zeros = emit("Cast", emit("Unsqueeze", stored, last), to=dtype)
    return emit("Mul", emit("Sub", rows, zeros), emit("Unsqueeze", gather(scales), last))


def _unpack(emit: NodeBuilder, packed: ir.Value, bits: int) -> ir.Value:
    """Integers [R, n] from bytes [R, n · bits / 8], the low half of each byte first."""
    if bits == 8:
        return packed
    low = emit("BitwiseAnd", packed, emit.constant(15, ir.DataType.UINT8))
    high = emit("BitShift", packed, emit.constant(4, ir.DataType.UINT8), direction="RIGHT")
    last = emit.constant([2])
    pairs = emit("Concat", emit("Unsqueeze", low, last), emit("Unsqueeze", high, last), axis=2)
    return emit("Flatten", pairs, axis=1)
