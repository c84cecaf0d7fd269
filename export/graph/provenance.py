"""Provenance of nodes: the canonical op that a node stands for, what created it, and which passes changed it.

Capture, passes and lowerings write these three texts to `node.metadata_props` when they create or change a node.
`lower` collects them at its end and removes them from the graph, so that no written file contains them.
"""

from dataclasses import dataclass, replace

import onnx_ir as ir

CANONICAL_OP, MADE_BY, CHANGED_BY = "edgeformer.canonical_op", "edgeformer.made_by", "edgeformer.changed_by"
CAPTURED, UNRECORDED = "captured from PyTorch", "not recorded"


@dataclass(frozen=True)
class NodeOrigin:
    """Where a node comes from.

    canonical: the op of the canonical graph that it stands for, `domain::op`. creator: what created the node. passes:
    the passes that changed it, or the node that it replaces, in order.
    """

    canonical: str
    creator: str
    passes: str = ""

    @property
    def made_by(self) -> str:
        """The creator of the node, then the passes that changed it."""
        return _listed(self.creator, self.passes)

    @property
    def properties(self) -> dict[str, str]:
        """The origin as it is stored in `metadata_props`."""
        return {CANONICAL_OP: self.canonical, MADE_BY: self.creator, CHANGED_BY: self.passes}

    def replaced(self, creator: str) -> "NodeOrigin":
        """Return the origin of nodes that `creator` puts in place of a node of this origin."""
        creator = f"{creator} for {self.canonical}"
        if creator == self.creator:
            return self
        return NodeOrigin(self.canonical, creator, self.passes if self.creator == CAPTURED else self.made_by)


def _listed(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def origin_of(node: ir.Node) -> NodeOrigin:
    """Return the recorded origin of a node."""
    stored = node.metadata_props
    if CANONICAL_OP not in stored:
        return NodeOrigin(f"{node.domain}::{node.op_type}" if node.domain else node.op_type, UNRECORDED)
    return NodeOrigin(stored[CANONICAL_OP], stored[MADE_BY], stored[CHANGED_BY])


def record_capture(model: ir.Model) -> None:
    """Record for every node of a captured graph that it comes from PyTorch."""
    for node in model.graph:
        node.metadata_props.update(replace(origin_of(node), creator=CAPTURED).properties)


def record_change(node: ir.Node, change: str) -> None:
    """Record that a pass changed a node in place; `change` says what it did and names the pass."""
    origin = origin_of(node)
    node.metadata_props.update(replace(origin, passes=_listed(origin.passes, change)).properties)


def collect_origins(model: ir.Model) -> dict[str, NodeOrigin]:
    """Remove the recorded origins from a graph and return them by node name."""
    origins = {node.name or "": origin_of(node) for node in model.graph}
    for node in model.graph:
        for key in (CANONICAL_OP, MADE_BY, CHANGED_BY):
            node.metadata_props.pop(key, None)
    return origins
