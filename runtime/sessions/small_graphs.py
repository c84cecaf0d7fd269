"""Write ONNX models of a few nodes, and open sessions of them.

They are written as protocol buffers, because the runtime has no other use for the package onnx.
https://protobuf.dev/programming-guides/encoding/ has the format, and onnx.proto the numbers of the fields.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeformer.manifest.providers import Provider
from edgeformer.runtime.sessions.cuda_options import CudaOptions
from edgeformer.runtime.sessions.narrow_floats import BFLOAT16
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import BESIDE, graph_session, session_options

IR_VERSION, OPSET = 10, 18
"""They are what onnxruntime 1.30 and newer take, and have bfloat16 in all ops that are used here."""

ELEMENTS: dict[np.dtype[Any], int] = {
    np.dtype(kind): number
    for kind, number in ((np.float32, 1), (np.uint8, 2), (np.int8, 3), (np.int64, 7), (np.float16, 10), (BFLOAT16, 16))
}
"""ONNX's numbers of element types."""

MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSET_IMPORT, OPSET_VERSION = 1, 7, 8, 2
GRAPH_NODE, GRAPH_NAME, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 1, 2, 5, 11, 12
TENSOR_DIMS, TENSOR_TYPE, TENSOR_INT64, TENSOR_NAME = 1, 2, 7, 8
NODE_INPUT, NODE_OUTPUT, NODE_OP_TYPE, NODE_ATTRIBUTE = 1, 2, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TYPE, TYPE_INT = 1, 3, 20, 2
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE, SHAPE_DIM = 1, 2, 1, 1, 2, 1


@dataclass(frozen=True)
class Value:
    """An input or an output of a graph, whose dimensions may be of any size. rank: the number of dimensions."""

    name: str
    dtype: np.dtype[Any]
    rank: int


@dataclass(frozen=True)
class Node:
    """An op of ONNX. axis: its attribute of this name; None for an op without one."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    axis: int | None = None


def write_graph(
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    numbers: Mapping[str, int] = MappingProxyType({}),
) -> bytes:
    """Return a model as the bytes of its file. numbers: constants int64 [1] by their names."""
    graph = b"".join(_field(GRAPH_NODE, _node(each)) for each in nodes) + _field(GRAPH_NAME, "graph")
    graph += b"".join(_field(GRAPH_INITIALIZER, _number(name, number)) for name, number in numbers.items())
    graph += b"".join(_field(GRAPH_INPUT, _value(each)) for each in inputs)
    graph += b"".join(_field(GRAPH_OUTPUT, _value(each)) for each in outputs)
    opsets = _field(MODEL_OPSET_IMPORT, _field(OPSET_VERSION, OPSET))
    return _field(MODEL_IR_VERSION, IR_VERSION) + opsets + _field(MODEL_GRAPH, graph)


def open_small_graph(model: bytes, provider: Provider) -> Any:
    """Open a session of a model, in one thread; errors of its runs are those of `open_session`."""
    providers = sessions_of(provider).execution_providers(CudaOptions())
    with redirect_stdout(sys.stderr):
        return graph_session(BESIDE, provider.on_device, model, session_options(1), providers)


def _node(node: Node) -> bytes:
    names = b"".join(_field(NODE_INPUT, each) for each in node.inputs)
    names += b"".join(_field(NODE_OUTPUT, each) for each in node.outputs)
    data = names + _field(NODE_OP_TYPE, node.op)
    if node.axis is not None:
        attribute = _field(ATTRIBUTE_NAME, "axis") + _field(ATTRIBUTE_INT, node.axis)
        data += _field(NODE_ATTRIBUTE, attribute + _field(ATTRIBUTE_TYPE, TYPE_INT))
    return data


def _number(name: str, number: int) -> bytes:
    kind = _field(TENSOR_TYPE, ELEMENTS[np.dtype(np.int64)])
    return _field(TENSOR_DIMS, 1) + kind + _field(TENSOR_INT64, number) + _field(TENSOR_NAME, name)


def _value(value: Value) -> bytes:
    dims = _field(SHAPE_DIM, b"") * value.rank
    tensor = _field(TENSOR_ELEMENT, ELEMENTS[value.dtype]) + _field(TENSOR_SHAPE, dims)
    return _field(VALUE_NAME, value.name) + _field(VALUE_TYPE, _field(TYPE_TENSOR, tensor))


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
