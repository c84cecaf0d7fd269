"""Queries on a graph that passes and lowerings share, and the few changes that they have in common."""

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.tensors import StreamedTensor


def canonical_nodes(model: ir.Model, *op_types: str) -> list[ir.Node]:
    """Return all nodes of these canonical ops, in order; a list, so that the graph may change meanwhile."""
    return [node for node in model.graph if node.domain == DOMAIN and node.op_type in op_types]


def producer(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """Return the node that computes `value` if it is an `op_type`, otherwise None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == domain else None


def read_once(value: ir.Value) -> bool:
    """Return whether exactly one node reads a value, and it is not a graph output."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def streamed(value: ir.Value | None) -> StreamedTensor | None:
    """Return the weight of an initializer, or None where `value` is none."""
    tensor = None if value is None else value.const_value
    return tensor if isinstance(tensor, StreamedTensor) else None


def dim(value: ir.Value | None, axis: int) -> int:
    """Return a static dimension of a value, such as head_dim or the width of a table."""
    assert value is not None and value.shape is not None
    size = value.shape[axis]
    assert isinstance(size, int), f"dimension {axis} of {value.name} is {size}"
    return size


def head_dim_of(attention: ir.Node) -> int:
    """Return head_dim of a canonical attention, whose query may have key and value packed behind it."""
    inputs = canonical_inputs(attention)
    heads, kv_heads = attention.attributes.get_int("num_heads"), attention.attributes.get_int("num_kv_heads")
    return dim(inputs.query, -1) // (heads if inputs.key is not None else heads + 2 * kv_heads)


def dtype_of(value: ir.Value | None) -> ir.DataType:
    """Return the element type of a value that has one."""
    assert value is not None and value.dtype is not None
    return value.dtype


def same_type(new: ir.Value, old: ir.Value) -> None:
    """Give a new value the name, type and shape of the one that it replaces."""
    new.name, new.type, new.shape = old.name, old.type, old.shape


def add_initializer(model: ir.Model, tensor: StreamedTensor) -> ir.Value:
    """Register a weight and return its value."""
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    model.graph.register_initializer(value)
    return value


def remove_initializer(model: ir.Model, value: ir.Value) -> None:
    """Remove a weight; another one of the same name stays."""
    name = value.name or ""
    if model.graph.initializers.get(name) is value:
        model.graph.initializers.pop(name)


def remove_if_unused(model: ir.Model, *nodes: ir.Node | None) -> None:
    """Remove nodes that nothing reads, and the weights that only they read. Readers come before what they read."""
    for node in nodes:
        if node is None or any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        inputs = [value for value in node.inputs if value is not None]
        model.graph.remove(node, safe=True)
        for value in inputs:
            if not value.uses():
                remove_initializer(model, value)
