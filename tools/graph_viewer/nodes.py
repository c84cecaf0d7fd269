"""Format nodes as text: op, inputs, attributes and outputs."""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from graph_viewer.tensors import digest, dtype_name, is_small, small_values, tensor_type

ONNX_DOMAINS = ("", "ai.onnx")
"""Both names of the domain of ONNX's own ops."""

SHOWN_DIGITS = 12
"""Digits of a hash that are shown: enough to tell the tensors of a graph apart."""


def op_name(node: NodeProto) -> str:
    """Return an op as `com.microsoft::FusedMatMul`, without the domain for ONNX's own ops."""
    return node.op_type if node.domain in ONNX_DOMAINS else f"{node.domain}::{node.op_type}"


def opset_name(domain: str) -> str:
    """Return the name of an opset's domain, which may be stored as empty for ONNX's own."""
    return domain or ONNX_DOMAINS[1]


def node_text(node: NodeProto, called: Callable[[str], str] = str) -> str:
    """Return a node as `Softmax(scores) {axis=-1} → weights`. called: maps names of values; an absent value is `-`."""
    inputs, outputs = (
        ", ".join(called(value) if value else "-" for value in values) for values in (node.input, node.output)
    )
    return f"{op_name(node)}({inputs}){attributes_text(node)} → {outputs}"


def attributes_text(node: NodeProto) -> str:
    """Return attributes as ` {axis=-1, epsilon=1e-05}`, sorted by name; empty if there are none."""
    attributes = sorted(node.attribute, key=lambda attribute: attribute.name)
    items = [f"{attribute.name}={attribute_text(attribute)}" for attribute in attributes]
    return " {" + ", ".join(items) + "}" if items else ""


def attribute_text(attribute: AttributeProto) -> str:
    """Return an attribute's value: a parameter of the enclosing function as `@name`, a graph by its size."""
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    match attribute.type:
        case AttributeProto.INT | AttributeProto.INTS:
            return str(value)
        case AttributeProto.FLOAT:
            return _float(value)
        case AttributeProto.FLOATS:
            return "[" + ", ".join(map(_float, value)) + "]"
        case AttributeProto.STRING:
            return _quoted(value)
        case AttributeProto.STRINGS:
            return "[" + ", ".join(map(_quoted, value)) + "]"
        case AttributeProto.TENSOR:
            return tensor_text(value)
        case AttributeProto.GRAPH:
            return f"graph of {len(value.node)} nodes"
        case kind:
            content = hashlib.sha256(attribute.SerializeToString(deterministic=True)).hexdigest()
            return f"{AttributeProto.AttributeType.Name(kind).lower()} sha256 {content[:SHOWN_DIGITS]}"


def tensor_text(tensor: TensorProto) -> str:
    """Return a tensor as `int64[2] {1, 2}`, or with the start of its hash if it has many values."""
    shown = small_values(tensor) if is_small(tensor) else f"sha256 {digest(tensor)[:SHOWN_DIGITS]}"
    return (
        f"{tensor_type(tensor.data_type, tuple(tensor.dims)) if tensor.dims else dtype_name(tensor.data_type)} {shown}"
    )


def subgraphs_of(node: NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the graphs among a node's attributes, by name."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


def values_read(node: NodeProto) -> Iterator[str]:
    """Yield the names of all values that a node reads, including those inside its subgraphs."""
    yield from node.input
    for _, body in subgraphs_of(node):
        for inner in body.node:
            yield from values_read(inner)
        yield from (value.name for value in body.output)


def _float(value: float) -> str:
    """Return the shortest text that identifies a float32."""
    return str(np.float32(value))


def _quoted(value: bytes) -> str:
    return f'"{value.decode(errors="replace")}"'
