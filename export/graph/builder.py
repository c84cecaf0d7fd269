"""Create ONNX nodes like formulas: `emit("Add", a, b)` creates a node and returns its output value."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeformer.export.graph.editing import add_initializer, remove_initializer, same_type
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import NodeOrigin, origin_of
from edgeformer.export.graph.tensors import StreamedTensor

Outputs = Sequence[ir.Value]
"""The values that take the places of a node's outputs, in order."""

Attribute = (
    str | int | float | Sequence[int] | Sequence[float] | Sequence[str] | ir.TensorProtocol | ir.Graph | ir.Attr | None
)
"""The value of an attribute of a node; None leaves it out."""


class NodeBuilder:
    """A list of new nodes that are not in a graph yet.

    prefix: the first part of their names. origin: recorded in every node; None for nodes whose origin nobody reads.
    """

    def __init__(self, prefix: str, origin: NodeOrigin | None = None):
        self._tape = ir.tape.Tape()
        self._prefix = prefix
        self._properties = {} if origin is None else origin.properties

    @classmethod
    def replacing(cls, node: ir.Node, creator: str) -> "NodeBuilder":
        """Return a builder of nodes that stand for `node`; creator: who emits them, such as "emitted by lower/ort"."""
        return cls(node.name or "", origin_of(node).replaced(creator))

    @property
    def nodes(self) -> Sequence[ir.Node]:
        """The nodes created so far, in order."""
        return self._tape.nodes

    def __call__(self, op: str, *inputs: ir.Value | None, domain: str = "", **attributes: Attribute) -> ir.Value:
        """Create a node with one output."""
        return self._tape.op(op, inputs, attributes, domain=domain, **self._named(op))

    def many(
        self, op: str, *inputs: ir.Value | None, outputs: int, domain: str = "", **attributes: Attribute
    ) -> Sequence[ir.Value]:
        """Create a node with several outputs."""
        return self._tape.op_multi_out(op, inputs, attributes, num_outputs=outputs, domain=domain, **self._named(op))

    def _named(self, op: str) -> dict[str, Any]:
        return {"name": f"{self._prefix}/{op}_{len(self.nodes)}", "metadata_props": dict(self._properties)}

    def constant(self, value: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """Create a constant from a Python number or list."""
        return self("Constant", value=ir.tensor(np.asarray(value, dtype.numpy()), dtype=dtype))


def replace_node(node: ir.Node, emit: NodeBuilder, outputs: Sequence[ir.Value], main: ir.Node | None = None) -> None:
    """Put the nodes of a builder in place of `node`, and `outputs` in place of its outputs.

    main: the new node that takes over the name; by default the only one, or none of several.
    """
    if main is not None or len(emit.nodes) == 1:
        (main or emit.nodes[0]).name = node.name
    for old, new in zip(node.outputs, outputs, strict=True):
        same_type(new, old)
    assert node.graph is not None
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], emit.nodes, node.outputs, outputs)


def replace_each(
    name: str, nodes: Iterable[ir.Node], creator: str, make: Callable[[NodeBuilder, ir.Node], Sequence[ir.Value]]
) -> PassReport:
    """Replace every node by the nodes that `make` emits for it; `make` returns the values of the node's outputs.

    name: of the report. creator: who emits the nodes, such as "emitted by lower/ort".
    """
    report = PassReport(name)
    for node in nodes:
        report.fire(node)
        emit = NodeBuilder.replacing(node, creator)
        replace_node(node, emit, make(emit, node))
    return report


def store_narrower(model: ir.Model, weight: ir.Value, stored: StreamedTensor) -> ir.Node:
    """Store a float32 weight as a tensor of a narrower type; return the cast that its readers read now."""
    remove_initializer(model, weight)
    emit = NodeBuilder(stored.name or "")
    widened = emit("Cast", add_initializer(model, stored), to=ir.DataType.FLOAT)
    widened.dtype, widened.shape = ir.DataType.FLOAT, stored.shape
    ir.convenience.replace_all_uses_with(weight, widened)
    model.graph.insert_before(model.graph[0], emit.nodes)
    return emit.nodes[0]
