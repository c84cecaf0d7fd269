"""The audit of the graphs of a folder for onnxruntime's CUDA provider."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from edgeformer.check.cuda.attribute_rules import broken_rules
from edgeformer.check.cuda.kernel_table import KernelTable, kernel_table
from edgeformer.check.cuda.placement import Placed, place
from edgeformer.check.cuda.typed_nodes import typed_nodes
from edgeformer.check.finding import Finding, Verdict, error, unknown, verdict
from edgeformer.check.folder import Folder
from edgeformer.errors import require
from edgeformer.manifest.providers import ProviderName

if TYPE_CHECKING:
    from onnx import ModelProto

REMEDY = "Export the model for CUDA: edgeformer export --provider cuda."


@dataclass(frozen=True, kw_only=True)
class GraphAudit:
    """The work of a device in a graph.

    Attributes:
        file: path in the folder.
        on_device: number of nodes on the GPU.
        shapes: ops of nodes that run on the CPU on purpose, because they compute shapes; by count.
        on_cpu: ops of nodes that run on the CPU for want of a kernel of the device, outside of layers; by count.
        findings: nodes in layers without such a kernel, and rules that nodes break.
    """

    file: str
    on_device: int
    shapes: dict[str, int]
    on_cpu: dict[str, int]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class ProviderAudit:
    """The audit of a folder. onnxruntime: the version whose kernels were compared. graphs: one audit each."""

    provider: ProviderName
    onnxruntime: str
    graphs: tuple[GraphAudit, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings about all graphs."""
        return tuple(finding for graph in self.graphs for finding in graph.findings)

    @property
    def verdict(self) -> Verdict:
        """Return whether every layer of every graph runs on the GPU."""
        return verdict(self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the audit as JSON data."""
        return {"verdict": self.verdict, **asdict(self)}


def audit_cuda(folder: Folder) -> ProviderAudit:
    """Return what the CUDA provider does with each graph of a folder, from the files only."""
    onnx, table = require("onnx", "check"), kernel_table()
    graphs = (
        audit_graph(name, onnx.load(folder.path / name, load_external_data=False), table) for name in folder.graphs
    )
    return ProviderAudit(provider="cuda", onnxruntime=table.onnxruntime, graphs=tuple(graphs))


def audit_graph(file: str, model: "ModelProto", table: KernelTable) -> GraphAudit:
    """Return what the CUDA provider does with a graph. file: its name, for messages."""
    placed = place(typed_nodes(model, table), table)
    return GraphAudit(
        file=file,
        on_device=sum(each.where == "device" for each in placed),
        shapes=_ops(each for each in placed if each.where == "shape"),
        on_cpu=_ops(each for each in placed if each.where == "host" and not each.node.activation),
        findings=tuple(_findings(file, placed, table)),
    )


def _findings(file: str, placed: list[Placed], table: KernelTable) -> Iterator[Finding]:
    """Yield one finding for each problem; it names the first node that has it."""
    problems: dict[tuple[str, str], list[Placed]] = {}
    for each in placed:
        if each.where in ("host", "nowhere") and (each.node.activation or each.where == "nowhere"):
            problems.setdefault((f"{each.node.domain}::{each.node.op}", each.reason or ""), []).append(each)
        elif each.where == "device":
            for rule in broken_rules(each.node):
                yield Finding(
                    rule.severity,
                    f"{file}: {each.node.title}: {rule.problem} (onnxruntime {table.onnxruntime}, {rule.source}).",
                )
    for (_, reason), nodes in problems.items():
        first, more = nodes[0], f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        # A node whose types are not known cannot be compared with kernels.
        report = unknown if any(each and each.kind is None for each in first.node.inputs) else error
        falls = (
            "runs on the CPU, inside a layer"
            if first.where == "host"
            else "does not run, since the CPU has none either"
        )
        yield report(f"{file}: {first.node.title}{more} {falls}: {reason}.", REMEDY)


def _ops(placed: Iterable[Placed]) -> dict[str, int]:
    return dict(sorted(Counter(each.node.op for each in placed).items()))
