"""Write ONNX models of a few nodes, and open sessions of them.

They are written as protocol buffers, because the runtime has no other use for the package onnx.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeformer.contract import protobuf as onnx
from edgeformer.contract.protobuf import written_field
from edgeformer.manifest.providers import Provider
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
    graph = b"".join(written_field(onnx.GRAPH_NODE, _node(each)) for each in nodes) + written_field(
        onnx.GRAPH_NAME, "graph"
    )
    graph += b"".join(written_field(onnx.GRAPH_INITIALIZER, _number(name, number)) for name, number in numbers.items())
    graph += b"".join(written_field(onnx.GRAPH_INPUT, _value(each)) for each in inputs)
    graph += b"".join(written_field(onnx.GRAPH_OUTPUT, _value(each)) for each in outputs)
    opsets = written_field(onnx.MODEL_OPSET_IMPORT, written_field(onnx.OPSET_VERSION, OPSET))
    return written_field(onnx.MODEL_IR_VERSION, IR_VERSION) + opsets + written_field(onnx.MODEL_GRAPH, graph)


def open_small_graph(model: bytes, provider: Provider) -> Any:
    """Open a session of a model, in one thread; errors of its runs are those of `open_session`."""
    settings = session_options(1)
    with redirect_stdout(sys.stderr):
        return graph_session(BESIDE, sessions_of(provider), model, settings)


def _node(node: Node) -> bytes:
    names = b"".join(written_field(onnx.NODE_INPUT, each) for each in node.inputs)
    names += b"".join(written_field(onnx.NODE_OUTPUT, each) for each in node.outputs)
    data = names + written_field(onnx.NODE_OP_TYPE, node.op)
    if node.axis is not None:
        attribute = written_field(onnx.ATTRIBUTE_NAME, "axis") + written_field(onnx.ATTRIBUTE_INT, node.axis)
        data += written_field(onnx.NODE_ATTRIBUTE, attribute + written_field(onnx.ATTRIBUTE_TYPE, onnx.TYPE_INT))
    return data


def _number(name: str, number: int) -> bytes:
    kind = written_field(onnx.TENSOR_TYPE, ELEMENTS[np.dtype(np.int64)])
    return (
        written_field(onnx.TENSOR_DIMS, 1)
        + kind
        + written_field(onnx.TENSOR_INT64, number)
        + written_field(onnx.TENSOR_NAME, name)
    )


def _value(value: Value) -> bytes:
    dims = written_field(onnx.SHAPE_DIM, b"") * value.rank
    tensor = written_field(onnx.TENSOR_ELEMENT, ELEMENTS[value.dtype]) + written_field(onnx.TENSOR_SHAPE, dims)
    return written_field(onnx.VALUE_NAME, value.name) + written_field(
        onnx.VALUE_TYPE, written_field(onnx.TYPE_TENSOR, tensor)
    )
