"""What a pass says about what it did."""

from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass
class PassReport:
    """How many places a pass changed, and why it left the others that looked alike."""

    name: str
    changed: int = 0
    missed: list[str] = field(default_factory=list)

    def miss(self, node: ir.Node, reason: str) -> None:
        """Record a place that was left as it was."""
        self.missed.append(f"{node.name}: {reason}")
