"""What a pass says about what it did."""

from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass
class PassReport:
    """How many places a pass (or a rule of a lowering) changed, which, and why it left others that looked alike.

    places: names of the nodes; a pass that changes many small ones only counts them. missed: `node: reason`.
    """

    name: str
    changed: int = 0
    places: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def fire(self, node: ir.Node) -> None:
        """Record a place that is changed."""
        self.changed += 1
        self.places.append(node.name or "")

    def miss(self, node: ir.Node, reason: str) -> None:
        """Record a place that was left as it was."""
        self.missed.append(f"{node.name}: {reason}")

    def misses(self) -> list[tuple[str, str]]:
        """Places that were left, and why."""
        return [(place, reason) for place, _, reason in (each.partition(": ") for each in self.missed)]
