"""Function bodies of the ops of recurrent layers: a causal convolution and linear attention, in primitives of opset 18.

A runtime may bind past and present of a state to one buffer, so nothing may read the past once the present is written:
one node reads the past, and the present is computed from its result.

Dimensions: B rows, S new tokens, C channels, K taps of a convolution; G heads of queries and keys, H = G · R heads of
values, Dk and Dv their sizes; L tokens of a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgeformer.contract.tensors import CacheForm
from edgeformer.export.graph.builder import NodeBuilder, Outputs
from edgeformer.export.graph.cache_forms import INT64_MAX
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import dim, dtype_of

CHUNK = 32
"""Most tokens of a chunk, a power of two. Of 16, 32, 64 and 128, 32 is the fastest for 512 tokens of 16 heads of
128 × 128 and of 48 heads of 128 × 64 (onnxruntime 1.31, one thread of a Zen 5: 14 and 13 ms; a step takes 0.2 ms).
"""


def causal_conv(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """bias + Σ_k weight[k] · x[t − K + 1 + k], and the last K − 1 inputs."""
    inputs = canonical_inputs(node)
    x, past, mask, dtype = inputs["x"], inputs["past"], inputs["token_mask"], dtype_of(inputs.x)
    taps = dim(inputs["weight"], 1)
    slots = token_slots(emit, mask) if form == "dynamic" else None
    if slots is not None:
        x = gather_rows(emit, x, sources_of(emit, slots))  # the tokens of each row, then its padding
    window = emit("Concat", emit("Transpose", past, perm=[0, 2, 1]), x, axis=1)  # [B, K − 1 + S, C]
    length = emit("Shape", mask, start=1, end=2)
    weight = emit("Transpose", inputs.weight, perm=[1, 0])  # [K, C]
    y = inputs.bias
    for tap in range(taps):
        end = emit("Add", length, emit.constant([tap]))
        shifted = emit("Slice", window, emit.constant([tap]), end, emit.constant([1]))  # [B, S, C]
        product = emit("Mul", shifted, emit("Gather", weight, emit.constant(tap), axis=0))
        y = product if y is None else emit("Add", y, product)
    assert y is not None
    y = emit("Mul", y, emit("Sigmoid", y)) if node.attributes.get_int("silu") else y
    y.dtype = dtype
    present = emit("Transpose", gather_rows(emit, window, _last_inputs(emit, mask, taps - 1)), perm=[0, 2, 1])
    return [y if slots is None else gather_rows(emit, y, slots), present]


def _last_inputs(emit: NodeBuilder, mask: ir.Value, count: int) -> ir.Value:
    """Return the places of the last inputs before the padding, in past and x: int64 [B, count]."""
    tokens = emit("ReduceSum", emit("Cast", mask, to=ir.DataType.INT64), emit.constant([1]), keepdims=1)
    return emit("Add", tokens, emit.constant(list(range(count))))


def token_slots(emit: NodeBuilder, mask: ir.Value) -> ir.Value:
    """Return where each of the new tokens of a row comes to stand if padding moves behind tokens: int64 [B, S]."""
    one = emit.constant(1)
    tokens = emit("Cast", mask, to=ir.DataType.INT64)
    before = emit("CumSum", tokens, one, exclusive=1)
    paddings = emit("CumSum", emit("Sub", one, tokens), one, exclusive=1)
    behind = emit("Add", emit("ReduceSum", tokens, emit.constant([1]), keepdims=1), paddings)
    return emit("Where", mask, before, behind)


def sources_of(emit: NodeBuilder, slots: ir.Value) -> ir.Value:
    """Return the inverse of each row of permutations int64 [B, S]."""
    length = emit("Squeeze", emit("Shape", slots, start=1, end=2))
    columns = emit("Range", emit.constant(0), length, emit.constant(1))
    return emit("ScatterElements", slots, slots, emit("Expand", columns, emit("Shape", slots)), axis=1)


def gather_rows(emit: NodeBuilder, x: ir.Value, places: ir.Value) -> ir.Value:
    """Return x [B, T, C] at places int64 [B, N]: [B, N, C]."""
    return emit("GatherND", x, emit("Unsqueeze", places, emit.constant([2])), batch_dims=1)


def linear_attention(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """Read and update a matrix per head, chunk by chunk: a Scan whose state is the matrix.

    float16 and bfloat16 are computed in float32, which sums of decays need.
    """
    inputs = canonical_inputs(node)
    dtype, mask, past = dtype_of(inputs.query), inputs["token_mask"], inputs["past"]
    heads, key_dim, value_dim = (dim(past, axis) for axis in (1, 2, 3))
    groups = dim(inputs["query"], 2) // key_dim
    wide = ir.DataType.DOUBLE if dtype_of(past) == ir.DataType.DOUBLE else ir.DataType.FLOAT

    def widened(value: ir.Value) -> ir.Value:
        return value if dtype_of(value) == wide else emit("Cast", value, to=wide)

    scale, zero = emit.constant(node.attributes.get_float("scale"), wide), emit.constant(0.0, wide)
    tokens = emit("Unsqueeze", mask, emit.constant([2]))
    sequences = {"query": emit("Mul", widened(inputs["query"]), scale)}
    for name in ("key", "value", "decay", "beta"):
        given = getattr(inputs, name)
        if given is not None:  # padding may hold anything, and adds nothing
            sequences[name] = emit("Where", tokens, widened(given), zero)

    split = _Chunks(emit, mask, groups)
    state = emit("Reshape", widened(past), emit.constant([0, groups, heads // groups, key_dim, value_dim]))
    chunks = {
        name: split(each, {"query": 1, "key": 1}.get(name, heads // groups), name in ("decay", "beta"))
        for name, each in sequences.items()
    }
    body = _chunk_body(node, list(chunks), wide)
    present, outputs = emit.many("Scan", state, *chunks.values(), outputs=2, num_scan_inputs=len(chunks), body=body)
    output = split.joined(outputs, heads * value_dim)
    present = emit("Reshape", present, emit.constant([0, heads, key_dim, value_dim]))
    types = dtype, dtype_of(past)
    return [
        each if to == wide else emit("Cast", each, to=to) for each, to in zip((output, present), types, strict=True)
    ]


class _Chunks:
    """Sequences cut into chunks of `size` tokens, the last one filled up with zeros: int64 [1], at most S and CHUNK."""

    def __init__(self, emit: NodeBuilder, mask: ir.Value, groups: int):
        self._emit, self._groups = emit, groups
        self._length = emit("Shape", mask, start=1, end=2)
        self.size = emit("Min", self._length, emit.constant([CHUNK]))
        missing = emit("Mod", emit("Neg", self._length), self.size)
        self._ends = emit("Concat", emit.constant([0, 0, 0, 0]), missing, emit.constant([0]), axis=0)

    def __call__(self, sequence: ir.Value, heads: int, scalar: bool) -> ir.Value:
        """Return [chunks, B, G, heads, L, D] of a sequence [B, S, G · heads · D], without D for one of scalars."""
        emit = self._emit
        padded = emit("Pad", sequence, self._ends)
        tail = emit.constant([self._groups, heads] if scalar else [self._groups, heads, -1])
        chunks = emit("Div", emit("Shape", padded, start=1, end=2), self.size)
        rows = emit("Shape", padded, start=0, end=1)
        cut = emit("Reshape", padded, emit("Concat", rows, chunks, self.size, tail, axis=0))
        return emit("Transpose", cut, perm=[1, 0, 3, 4, 2] if scalar else [1, 0, 3, 4, 2, 5])

    def joined(self, chunks: ir.Value, width: int) -> ir.Value:
        """Return the sequence [B, S, width] of chunks [chunks, B, G, R, L, D]."""
        emit = self._emit
        tokens = emit("Transpose", chunks, perm=[1, 0, 4, 2, 3, 5])
        whole = emit("Reshape", tokens, emit.constant([0, -1, width]))
        return emit("Slice", whole, emit.constant([0]), self._length, emit.constant([1]))


@dataclass(frozen=True)
class _Decays:
    """Decays within a chunk: from token j to token i [.., L, L], from the old state to token i [.., L, 1], and both for
    the last token. None: nothing decays, and `between` only hides the tokens behind i.
    """

    between: ir.Value
    old: ir.Value | None = None
    last_between: ir.Value | None = None
    last_old: ir.Value | None = None


class _Triangles:
    """Constants [L, L] of a chunk of L tokens, cut from larger ones: which token j a token i relates to."""

    def __init__(self, emit: NodeBuilder, size: ir.Value, dtype: ir.DataType):
        self._emit, self._size, self._dtype = emit, size, dtype
        self._row, self._column = np.indices((CHUNK, CHUNK))
        self.zero = emit.constant(0.0, dtype)
        self.last_axis = emit.constant([4])

    @property
    def before(self) -> ir.Value:
        """Whether token j comes before token i."""
        return self._cut(self._row > self._column)

    @property
    def seen(self) -> ir.Value:
        """Whether token i sees token j, itself included."""
        return self._cut(self._row >= self._column)

    @property
    def ones(self) -> ir.Value:
        """1 where token i sees token j, otherwise 0."""
        return self._cut(self._row >= self._column, self._dtype)

    @property
    def identity(self) -> ir.Value:
        """1 where i is j, otherwise 0."""
        return self._cut(self._row == self._column, self._dtype)

    def levels(self) -> list[ir.Value]:
        """Return, for pairs of blocks of 1, 2, 4 … tokens, where the second block of a pair relates to the first."""
        sizes = [1 << level for level in range(CHUNK.bit_length() - 1)]
        blocks = [(self._row // size, self._column // size) for size in sizes]
        return [self._cut((row % 2 == 1) & (row == column + 1)) for row, column in blocks]

    def _cut(self, whole: NDArray[np.bool_], dtype: ir.DataType = ir.DataType.BOOL) -> ir.Value:
        emit = self._emit
        ends = emit("Concat", self._size, self._size, axis=0)
        return emit("Slice", emit.constant(whole, dtype), emit.constant([0, 0]), ends)


def _chunk_body(node: ir.Node, sequences: Sequence[str], dtype: ir.DataType) -> ir.Graph:
    """Return the graph of one chunk: old state and sequences of the chunk → new state [B, G, R, Dk, Dv], output.

    It reads nothing from the graph around it.

    With D[i, j] the decay from token j to token i, c[i] the one from the old state M to token i, and u[i] what token i
    adds to the state along its key:

        u = v, or with β   (I + A) · u = β · (v − c · k·M), where A[i, j] = β[i] · D[i, j] · (k[i]·k[j]) for j < i
        output = c · q·M + (D · q·kᵀ) · u
        new M = c[L] · M + (D[L] · k)ᵀ · u

    Every decay is the exponential of a sum of numbers ≤ 0, so nothing overflows and no digits cancel.
    Source: arXiv 2412.06464, section 3.3 (gated delta rule), 2405.21060, section 6 (state spaces).
    """
    prefix = f"{node.name or node.op_type}/chunk"
    chunk = NodeBuilder(prefix)
    shapes, kind = _chunk_shapes(node), ir.TensorType(dtype)
    given = {
        name: ir.Value(name=f"{prefix}/{name}", type=kind, shape=ir.Shape(shapes[name]))
        for name in ("state", *sequences)
    }
    state, query, key, value = (given[name] for name in ("state", "query", "key", "value"))
    triangles = _Triangles(chunk, chunk("Shape", value, start=3, end=4), dtype)
    decays = _Decays(triangles.ones) if "decay" not in given else _decays(chunk, given["decay"], triangles)
    turned = chunk("Transpose", key, perm=[0, 1, 2, 4, 3])  # [B, G, 1, Dk, L]
    read = _scaled(chunk, chunk("MatMul", query, state), decays.old)  # [B, G, R, L, Dv]
    added = value
    if "beta" in given:
        beta = chunk("Unsqueeze", given["beta"], triangles.last_axis)  # [B, G, R, L, 1]
        known = _scaled(chunk, chunk("MatMul", key, state), decays.old)
        relations = chunk("Mul", chunk("Mul", chunk("MatMul", key, turned), decays.between), beta)
        inverse = _unit_triangle_inverse(chunk, relations, triangles)
        added = chunk("MatMul", inverse, chunk("Mul", beta, chunk("Sub", value, known)))
    scores = chunk("Mul", chunk("MatMul", query, turned), decays.between)  # [B, G, R, L, L]
    output = chunk("Add", read, chunk("MatMul", scores, added))
    update = chunk("MatMul", _scaled(chunk, turned, decays.last_between), added)
    new = chunk("Add", _scaled(chunk, state, decays.last_old), update)
    for index, each in enumerate(output for made in chunk.nodes for output in made.outputs):
        each.name = f"{prefix}/{index}"  # a graph within a graph shares its names
    new.type = output.type = kind
    new.shape, output.shape = ir.Shape(shapes["state"]), ir.Shape(shapes["value"])  # onnxruntime requires them
    return ir.Graph(list(given.values()), [new, output], nodes=chunk.nodes, name=prefix)


def _chunk_shapes(node: ir.Node) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of the state and of chunks of sequences; None stands for B and L."""
    inputs = canonical_inputs(node)
    heads, key_dim, value_dim = (dim(inputs.past, axis) for axis in (1, 2, 3))
    groups = dim(inputs.query, 2) // key_dim
    shared, own = (None, groups, 1, None), (None, groups, heads // groups, None)
    return {
        "state": (*own[:3], key_dim, value_dim),
        "query": (*shared, key_dim),
        "key": (*shared, key_dim),
        "value": (*own, value_dim),
        "decay": own,
        "beta": own,
    }


def _scaled(chunk: NodeBuilder, value: ir.Value, factor: ir.Value | None) -> ir.Value:
    return value if factor is None else chunk("Mul", value, factor)


def _decays(chunk: NodeBuilder, decay: ir.Value, triangles: _Triangles) -> _Decays:
    """Return the decays of a chunk for their logarithms [B, G, R, L]."""
    token_axis = chunk.constant(3)
    last = chunk.constant([-1]), chunk.constant([INT64_MAX]), chunk.constant([3])
    column = chunk("Unsqueeze", decay, triangles.last_axis)  # [B, G, R, L, 1]
    steps = chunk("Where", triangles.before, column, triangles.zero)  # [B, G, R, L, L]: token i, if it is behind j
    between = chunk("Exp", chunk("CumSum", steps, token_axis))
    between = chunk("Where", triangles.seen, between, triangles.zero)
    old = chunk("Exp", chunk("CumSum", column, token_axis))
    last_between, last_old = (chunk("Slice", each, *last) for each in (between, old))
    return _Decays(between, old, last_between, last_old)


def _unit_triangle_inverse(chunk: NodeBuilder, relations: ir.Value, triangles: _Triangles) -> ir.Value:
    """Return (I + A)⁻¹ [.., L, L], where A is `relations` [.., L, L] below the diagonal.

    The inverse of two neighbouring blocks with the inverses P and Q, and the relations R between them, is P, Q and
    −Q·R·P. So blocks of 1, 2, 4 … tokens are inverted by products, each entry of which is one that forward substitution
    has, too: powers of A, whose entries may grow beyond all digits, do not occur.
    """
    first, *rest = triangles.levels()
    inverse = chunk("Sub", triangles.identity, chunk("Where", first, relations, triangles.zero))
    for level in rest:
        crossing = chunk("MatMul", chunk("Where", level, relations, triangles.zero), inverse)
        inverse = chunk("Sub", inverse, chunk("MatMul", inverse, crossing))
    return inverse
