"""The questions that passes and lowerings ask of a graph, and the few changes they share."""

import onnx_ir as ir

from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.tensors import StreamedTensor


def canonical_nodes(model: ir.Model, *op_types: str) -> list[ir.Node]:
    """All nodes of these canonical ops, in order; a copy, so that the graph may change."""
    return [node for node in model.graph if node.domain == DOMAIN and node.op_type in op_types]


def producer(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The node that makes `value`, if it is an `op_type`."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == domain else None


def read_once(value: ir.Value) -> bool:
    """Whether one node reads a value, and nobody else."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def streamed(value: ir.Value | None) -> StreamedTensor | None:
    """The weight behind an initializer."""
    tensor = None if value is None else value.const_value
    return tensor if isinstance(tensor, StreamedTensor) else None


def tied_products(model: ir.Model) -> list[tuple[ir.Node, ir.Value]]:
    """Every MatMul(x, Transpose(W)) whose weight W is stored untransposed, with that weight."""
    found = []
    for node in model.graph:
        if node.domain == "" and node.op_type == "MatMul":
            transpose = producer(node.inputs[1], "Transpose")
            if transpose is not None and streamed(transpose.inputs[0]) is not None:
                found.append((node, transpose.inputs[0]))
    return found  # type: ignore[return-value]


def dim(value: ir.Value | None, axis: int) -> int:
    """A dimension that is a number: head_dim, a table's width…"""
    assert value is not None and value.shape is not None
    size = value.shape[axis]
    assert isinstance(size, int), f"dimension {axis} of {value.name} is {size}"
    return size


def head_dim_of(attention: ir.Node) -> int:
    """The size of a head, from the query of a canonical attention, which may have key and value packed behind it."""
    heads, kv_heads = attention.attributes.get_int("num_heads"), attention.attributes.get_int("num_kv_heads")
    return dim(attention.inputs[0], -1) // (heads if attention.inputs[1] is not None else heads + 2 * kv_heads)


def dtype_of(value: ir.Value | None) -> ir.DataType:
    """The element type of a value that has one."""
    assert value is not None and value.dtype is not None
    return value.dtype


def same_type(new: ir.Value, old: ir.Value) -> None:
    """Give a new value the name and type of the one that it stands for."""
    new.name, new.type, new.shape = old.name, old.type, old.shape


def add_initializer(model: ir.Model, tensor: StreamedTensor) -> ir.Value:
    """Register a weight and return its value."""
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    model.graph.register_initializer(value)
    return value


def remove_initializer(model: ir.Model, value: ir.Value) -> None:
    """Drop a weight; another one of the same name stays."""
    name = value.name or ""
    if model.graph.initializers.get(name) is value:
        model.graph.initializers.pop(name)


def remove_if_unused(model: ir.Model, *nodes: ir.Node | None) -> None:
    """Drop nodes that nothing reads any more, and the weights that only they read. Order: last first."""
    for node in nodes:
        if node is None or any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        inputs = [value for value in node.inputs if value is not None]
        model.graph.remove(node, safe=True)
        for value in inputs:
            if not value.uses():
                remove_initializer(model, value)
