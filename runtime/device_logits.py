"""Read from logits on a device no more than is needed: those of one token, or the most likely tokens.

Two small graphs do so there. They are written as protocol buffers, because the runtime has no other use for the package
onnx; https://protobuf.dev/programming-guides/encoding/ has the format, and onnx.proto the numbers of the fields.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest_parts import Provider
from edgeformer.runtime.buffer import Buffer
from edgeformer.runtime.session import open_small_graph

Array = NDArray[Any]

MOST_CANDIDATES = 256
"""Tokens that a device chooses at most; for more, the logits of all tokens are copied."""

IR_VERSION, OPSET = 10, 18
INT64 = 7
ELEMENT_TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 10}
"""ONNX's numbers of element types."""

MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSET_IMPORT, OPSET_VERSION = 1, 7, 8, 2
GRAPH_NODE, GRAPH_NAME, GRAPH_INPUT, GRAPH_OUTPUT = 1, 2, 11, 12
NODE_INPUT, NODE_OUTPUT, NODE_OP_TYPE, NODE_ATTRIBUTE = 1, 2, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TYPE, TYPE_INT = 1, 3, 20, 2
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE = 1, 2, 1, 1, 2
SHAPE_DIM, DIM_VALUE, DIM_NAME = 1, 1, 2


class DeviceLogits:
    """Reads logits [B, S, V] of a type from a device. On the CPU it does the same, for tests."""

    def __init__(self, dtype: np.dtype[Any], provider: Provider):
        self._dtype = dtype
        self._provider = provider
        self._row = open_small_graph(row_graph(dtype), provider)
        self._candidates = open_small_graph(candidates_graph(dtype), provider)

    def row(self, logits: Any, place: int) -> Array:
        """Return the logits of one token [V] of a value [1, S, V]."""
        binding = self._row.io_binding()
        binding.bind_ortvalue_input("logits", logits)
        binding.bind_cpu_input("place", np.array([place], np.int64))
        found = np.empty((1, 1, logits.shape()[-1]), self._dtype)
        binding.bind_output("row", "cpu", 0, found.dtype, found.shape, found.ctypes.data)
        self._row.run_with_iobinding(binding)
        return found[0, 0]

    def candidates(self, logits: Buffer, count: int) -> tuple[Array, NDArray[np.int64]]:
        """Return the logits and the ids of the most likely tokens [B, count], the first one first.

        logits: [B, 1, V], of which V is larger than `count`. Of equal ones the smaller id comes first, as ONNX's TopK
        has it.
        """
        binding, shape = self._candidates.io_binding(), (logits.shape[0], 1, count)
        logits.bind_input(binding, "logits")
        binding.bind_cpu_input("count", np.array([count], np.int64))
        values, ids = np.empty(shape, self._dtype), np.empty(shape, np.int64)
        for name, array in (("values", values), ("ids", ids)):
            binding.bind_output(name, "cpu", 0, array.dtype, shape, array.ctypes.data)
        self._candidates.run_with_iobinding(binding)
        return values[:, 0], ids[:, 0]


@cache
def device_logits(dtype: np.dtype[Any], provider: Provider) -> DeviceLogits:
    """Return the reader of this type, whose sessions this process opens once."""
    return DeviceLogits(dtype, provider)


def row_graph(dtype: np.dtype[Any]) -> bytes:
    """Return the model: logits [B, S, V], place [1] → the logits at that place of every text, `row` [B, 1, V]."""
    kind = ELEMENT_TYPES[dtype]
    return _model(
        _node("Gather", ["logits", "place"], ["row"], axis=1),
        [_value("logits", kind, "batch", "tokens", "vocabulary"), _value("place", INT64, 1)],
        [_value("row", kind, "batch", 1, "vocabulary")],
    )


def candidates_graph(dtype: np.dtype[Any]) -> bytes:
    """Return the model: logits [B, S, V], count [1] → the largest of each text, `values` and `ids` [B, S, count]."""
    kind = ELEMENT_TYPES[dtype]
    return _model(
        _node("TopK", ["logits", "count"], ["values", "ids"], axis=-1),
        [_value("logits", kind, "batch", "tokens", "vocabulary"), _value("count", INT64, 1)],
        [_value("values", kind, "batch", "tokens", "found"), _value("ids", INT64, "batch", "tokens", "found")],
    )


def _model(node: bytes, inputs: Sequence[bytes], outputs: Sequence[bytes]) -> bytes:
    graph = _field(GRAPH_NODE, node) + _field(GRAPH_NAME, "device_logits")
    graph += b"".join(_field(GRAPH_INPUT, each) for each in inputs)
    graph += b"".join(_field(GRAPH_OUTPUT, each) for each in outputs)
    return (
        _field(MODEL_IR_VERSION, IR_VERSION)
        + _field(MODEL_OPSET_IMPORT, _field(OPSET_VERSION, OPSET))
        + _field(MODEL_GRAPH, graph)
    )


def _node(op: str, inputs: Sequence[str], outputs: Sequence[str], axis: int) -> bytes:
    attribute = _field(ATTRIBUTE_NAME, "axis") + _field(ATTRIBUTE_INT, axis) + _field(ATTRIBUTE_TYPE, TYPE_INT)
    names = b"".join(_field(NODE_INPUT, each) for each in inputs)
    names += b"".join(_field(NODE_OUTPUT, each) for each in outputs)
    return names + _field(NODE_OP_TYPE, op) + _field(NODE_ATTRIBUTE, attribute)


def _value(name: str, element: int, *shape: int | str) -> bytes:
    dims = b"".join(_field(SHAPE_DIM, _field(DIM_VALUE if isinstance(dim, int) else DIM_NAME, dim)) for dim in shape)
    tensor = _field(TENSOR_ELEMENT, element) + _field(TENSOR_SHAPE, dims)
    return _field(VALUE_NAME, name) + _field(VALUE_TYPE, _field(TYPE_TENSOR, tensor))


def _field(number: int, content: int | str | bytes) -> bytes:
    """Return a field of a message: a number, or text or a message behind its length."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content % 2**64)
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a number in groups of 7 bits, the lowest first; all but the last have the bit 128."""
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])
