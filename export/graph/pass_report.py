"""Reports of passes and lowering rules: the nodes that they changed, and those that they left as they were."""

from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir


class Miss(NamedTuple):
    """A node that matched the pattern of a pass but not its requirements."""

    node: str
    reason: str


@dataclass
class PassReport:
    """The result of a pass, or of one rule of a lowering.

    changed: number of changes. places: names of the changed nodes; empty for a pass that only counts its changes.
    misses: nodes that looked alike and were not changed.
    """

    name: str
    changed: int = 0
    places: list[str] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)

    @property
    def missed(self) -> list[str]:
        """The misses as text: `node: reason`."""
        return [f"{miss.node}: {miss.reason}" for miss in self.misses]

    def fire(self, node: ir.Node) -> None:
        """Record a change at a node."""
        self.changed += 1
        self.places.append(node.name or "")

    def miss(self, node: ir.Node, reason: str) -> None:
        """Record why a node was left as it was."""
        self.misses.append(Miss(str(node.name), reason))
