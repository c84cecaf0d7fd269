"""Lookups in quantized matrices by ops of ONNX: some builds of onnxruntime have no GatherBlockQuantized.

The integers are the very tensor that products read. Where the head shares the embedding, a file needs no second copy of
them, even one whose tensors cannot share bytes.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dtype_of


def primitive_gather(emit: NodeBuilder, node: ir.Node) -> ir.Value:
    """The rows (integer − zero point) · scale of a canonical QuantizedGather, for ids of any shape."""
    ids, inputs = node.inputs[1], node.attributes.get_int("inputs")
    tokens = emit("Reshape", ids, emit.constant([-1]))
    per_channel = node.attributes.get_int("block") == 0
    rows = _of_outputs(emit, node, tokens) if per_channel else _of_blocks(emit, node, tokens)
    return emit("Reshape", rows, emit("Concat", emit("Shape", ids), emit.constant([inputs]), axis=0))


def _of_outputs(emit: NodeBuilder, node: ir.Node, tokens: ir.Value) -> ir.Value:
    """Rows [R, K] of int8 [K, N] around zero, with a scale for each of N."""
    integers, _, scales = node.inputs
    columns = emit("Gather", integers, tokens, axis=1)
    steps = emit("Cast", emit("Transpose", columns, perm=[1, 0]), to=dtype_of(scales))
    return emit("Mul", steps, emit("Unsqueeze", emit("Gather", scales, tokens, axis=0), emit.constant([1])))


def _of_blocks(emit: NodeBuilder, node: ir.Node, tokens: ir.Value) -> ir.Value:
    """Rows [R, B, L] of N, packed in bytes, with a scale for each of B blocks."""
    integers, _, scales, *zero_points = node.inputs
    bits, block, inputs = (node.attributes.get_int(name) for name in ("bits", "block", "inputs"))
    dtype, blocks = dtype_of(scales), inputs // block

    def found(table: ir.Value | None) -> ir.Value:
        return emit("Gather", table, tokens, axis=0)

    steps = _unpacked(emit, emit("Flatten", found(integers), axis=1), bits)
    steps = emit("Cast", emit("Reshape", steps, emit.constant([-1, blocks, block])), to=dtype)
    last = emit.constant([2])
    zeros = emit.constant(1 << (bits - 1), dtype)
    if zero_points:
        unpacked = _unpacked(emit, found(zero_points[0]), bits)
        # Zero points of an odd number of blocks end with half a byte of nothing.
        stored = emit("Slice", unpacked, emit.constant([0]), emit.constant([blocks]), emit.constant([1]))
        zeros = emit("Cast", emit("Unsqueeze", stored, last), to=dtype)
    return emit("Mul", emit("Sub", steps, zeros), emit("Unsqueeze", found(scales), last))


def _unpacked(emit: NodeBuilder, packed: ir.Value, bits: int) -> ir.Value:
    """Integers [R, n] of bytes [R, n · bits / 8], the low half of each first."""
    if bits == 8:
        return packed
    low = emit("BitwiseAnd", packed, emit.constant(15, ir.DataType.UINT8))
    high = emit("BitShift", packed, emit.constant(4, ir.DataType.UINT8), direction="RIGHT")
    last = emit.constant([2])
    pairs = emit("Concat", emit("Unsqueeze", low, last), emit("Unsqueeze", high, last), axis=2)
    return emit("Flatten", pairs, axis=1)
