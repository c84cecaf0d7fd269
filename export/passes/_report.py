"""What a pass says about what it did, and the few questions about a graph that every pass asks."""

from dataclasses import dataclass, field

import onnx_ir as ir

from edgeformer.export.canonical import DOMAIN
from edgeformer.export.tensors import StreamedTensor


@dataclass
class PassReport:
    """How many places a pass changed, and why it left the others that looked alike."""

    name: str
    changed: int = 0
    missed: list[str] = field(default_factory=list)

    def miss(self, node: ir.Node, reason: str) -> None:
        """Record a place that was left as it was."""
        self.missed.append(f"{node.name}: {reason}")


def canonical_nodes(model: ir.Model, op_type: str) -> list[ir.Node]:
    """All nodes of one canonical op, in order; a copy, so that the graph may change."""
    return [node for node in model.graph if node.domain == DOMAIN and node.op_type == op_type]


def producer(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The node that makes `value`, if it is an `op_type`."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == domain else None


def streamed(value: ir.Value | None) -> StreamedTensor | None:
    """The weight behind an initializer."""
    tensor = None if value is None else value.const_value
    return tensor if isinstance(tensor, StreamedTensor) else None


def add_initializer(model: ir.Model, tensor: StreamedTensor) -> ir.Value:
    """Register a weight and return its value."""
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    model.graph.register_initializer(value)
    return value


def remove_if_unused(model: ir.Model, *nodes: ir.Node | None) -> None:
    """Drop nodes that nothing reads any more, and the weights that only they read. Order: last first."""
    for node in nodes:
        if node is None or any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        inputs = [value for value in node.inputs if value is not None]
        model.graph.remove(node, safe=True)
        for value in inputs:
            if not value.uses() and model.graph.initializers.get(value.name) is value:
                model.graph.initializers.pop(value.name)
