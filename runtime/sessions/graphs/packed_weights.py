"""Products that read the integers of a file as it has them, without the bits that they do not use.

    Unpack5Bits(W) → MatMulNBits      becomes      MatMulNBits(W, packed_bits=5)

onnxruntime would compute all of the bytes when it opens a graph, one node after the other, and hold them beside what
kernels make of them. Kernels of edgeformer unpack a few rows at a time while they pack. A table of embeddings that is
read by rows, too, is computed for these.
"""

from collections.abc import Collection
from pathlib import Path

from edgeformer.contract import protobuf as onnx
from edgeformer.contract.ops import DOMAIN, UNPACK_BITS
from edgeformer.contract.protobuf import read_fields, read_texts, replaced_fields, written_field
from edgeformer.runtime.sessions.graphs.graph_functions import WITH_GRAPHS
from edgeformer.runtime.sessions.graphs.optional_inputs import content_of

INTEGERS = 1
"""The input of a product that has its integers."""

READERS = {"MatMulNBits", "MatMulNBitsBias", "MatMulNBitsBiasGelu", "MatMulNBitsGeGLU", "MatMulNBitsSwiGLU"}
"""Ops of domain `edgeformer` whose kernels have the attribute `packed_bits`."""

_BITS = {name: bits for bits, name in UNPACK_BITS.items()}


def with_packed_weights(path: Path, ops: Collection[str], content: bytes | None) -> bytes | None:
    """Return the content of a graph whose products read packed integers; what was given for one without any.

    ops: that the library of kernels has. content: what stands in for that of the file. onnxruntime says what is wrong
    with a damaged graph.
    """
    model = content_of(path) if content is None else content
    if model is None or not any(name.encode() in model for name in _BITS):
        return content
    try:
        return replaced_fields(
            memoryview(model),
            lambda number, graph: _with_packed(graph, READERS & set(ops)) if number == onnx.MODEL_GRAPH else None,
        )
    except (IndexError, ValueError):
        return content


def _with_packed(graph: memoryview, readers: Collection[str]) -> bytes:
    """Return a graph whose products read packed integers. Raises ValueError and IndexError for a damaged one."""
    fields = list(read_fields(graph))  # a graph has no fields of numbers
    packed = {}
    for number, node in fields:
        if number == onnx.GRAPH_NODE and (bits := _BITS.get(_op(node))):
            packed[read_texts(node, onnx.NODE_OUTPUT)[0]] = read_texts(node, onnx.NODE_INPUT)[0], bits
    parts: list[tuple[int, bytes | memoryview]] = []
    read = {read_texts(part, onnx.VALUE_NAME)[0] for number, part in fields if number == onnx.GRAPH_OUTPUT}
    for number, content in fields:
        new: bytes | memoryview = content
        if number == onnx.GRAPH_NODE:
            inputs = read_texts(content, onnx.NODE_INPUT)
            if _op(content) in readers and inputs[INTEGERS] in packed:
                new = _reading(content, *packed[inputs[INTEGERS]])
            read.update(read_texts(memoryview(new), onnx.NODE_INPUT))
            if "".join(read_texts(content, onnx.NODE_OP_TYPE)).encode() in WITH_GRAPHS:  # a branch may read any value
                read.update(name for name in packed if name.encode() in bytes(content))
        parts.append((number, new))
    return b"".join(
        written_field(number, bytes(part))
        for number, part in parts
        if number != onnx.GRAPH_NODE or _op(memoryview(part)) not in _BITS or not read.isdisjoint(_outputs(part))
    )


def _reading(node: memoryview, integers: str, bits: int) -> bytes:
    """Return a product that reads packed integers."""
    places = iter(range(len(read_texts(node, onnx.NODE_INPUT))))

    def replaced(number: int, _: memoryview) -> bytes | None:
        return integers.encode() if number == onnx.NODE_INPUT and next(places) == INTEGERS else None

    attribute = written_field(onnx.ATTRIBUTE_NAME, "packed_bits") + written_field(onnx.ATTRIBUTE_INT, bits)
    kind = written_field(onnx.ATTRIBUTE_TYPE, onnx.TYPE_INT)
    return replaced_fields(node, replaced) + written_field(onnx.NODE_ATTRIBUTE, attribute + kind)


def _op(node: memoryview) -> str:
    """Return the name of a node's op in domain `edgeformer`; "" for a node of another one."""
    return "".join(read_texts(node, onnx.NODE_OP_TYPE)) if read_texts(node, onnx.NODE_DOMAIN) == [DOMAIN] else ""


def _outputs(node: bytes | memoryview) -> list[str]:
    return read_texts(memoryview(node), onnx.NODE_OUTPUT)
