"""Write ONNX nodes as one writes formulas: `emit("Add", a, b)` makes a node and returns its output value."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeformer.export.graph.editing import same_type


class NodeBuilder:
    """Collects new nodes; their names start with `prefix`, so that they can be traced to what they replace."""

    def __init__(self, prefix: str):
        self._tape = ir.tape.Tape()
        self._prefix = prefix

    @property
    def nodes(self) -> Sequence[ir.Node]:
        """The nodes made so far, in order."""
        return self._tape.nodes

    def __call__(self, op: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """Make a node with one output."""
        return self._tape.op(op, inputs, attributes, domain=domain, name=f"{self._prefix}/{op}_{len(self.nodes)}")

    def many(
        self, op: str, *inputs: ir.Value | None, outputs: int, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """Make a node with several outputs."""
        name = f"{self._prefix}/{op}_{len(self.nodes)}"
        return self._tape.op_multi_out(op, inputs, attributes, num_outputs=outputs, domain=domain, name=name)

    def constant(self, value: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """Make a constant from a Python number or list."""
        return self("Constant", value=ir.tensor(np.asarray(value, dtype.numpy()), dtype=dtype))


def replace_node(node: ir.Node, emit: NodeBuilder, outputs: Sequence[ir.Value], main: ir.Node | None = None) -> None:
    """Put the emitter's nodes in the place of `node`, and `outputs` in the place of its outputs.

    main: of several nodes, the one that takes over the name.
    """
    if main is not None or len(emit.nodes) == 1:
        (main or emit.nodes[0]).name = node.name
    for old, new in zip(node.outputs, outputs, strict=True):
        same_type(new, old)
    assert node.graph is not None
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], emit.nodes, node.outputs, outputs)
