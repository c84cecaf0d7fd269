"""The audit of the graphs of a folder for the provider of a device."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from edgeformer.check.finding import Finding, Verdict, error, unknown, verdict
from edgeformer.check.folder import Folder
from edgeformer.check.providers import cuda_rules, webgpu_rules
from edgeformer.check.providers.attribute_rules import Rules
from edgeformer.check.providers.kernel_table import KernelTable, kernel_table
from edgeformer.check.providers.placement import Placed, place
from edgeformer.check.providers.typed_nodes import typed_nodes
from edgeformer.check.session_rules import GPU, Release, version_findings
from edgeformer.errors import require
from edgeformer.manifest.providers import PROVIDERS, ProviderName

if TYPE_CHECKING:
    from onnx import ModelProto
RULES: Mapping[ProviderName, Rules] = {"cuda": cuda_rules.RULES, "webgpu": webgpu_rules.RULES}
"""The requirements of kernels beyond types, by provider."""

RELEASES: Mapping[ProviderName, Release] = {"cuda": GPU}
"""The package of onnxruntime that has the provider; a plugin runs in that for the CPU."""


@dataclass(frozen=True, kw_only=True)
class GraphAudit:
    """The work of a device in a graph.

    Attributes:
        file: path in the folder.
        on_device: number of nodes on the GPU.
        shapes: ops of nodes that run on the CPU on purpose, because they compute shapes; by count.
        on_cpu: ops of nodes that run on the CPU for want of a kernel of the device, outside of layers; by count.
        findings: versions that its onnxruntime does not read, nodes in layers without such a kernel, and rules
            that nodes break.
    """

    file: str
    on_device: int
    shapes: dict[str, int]
    on_cpu: dict[str, int]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class ProviderAudit:
    """The audit of a folder.

    Attributes:
        onnxruntime: the version whose kernels were compared.
        package: what has the kernels of the device, with its version.
        graphs: one audit for each graph.
    """

    provider: ProviderName
    onnxruntime: str
    package: str
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


def audit_provider(folder: Folder, provider: ProviderName) -> ProviderAudit:
    """Return what the provider of a device does with each graph of a folder, from the files only."""
    onnx, table = require("onnx", "check"), kernel_table(provider)
    graphs = (
        audit_graph(name, onnx.load(folder.path / name, load_external_data=False), table) for name in folder.graphs
    )
    return ProviderAudit(provider=provider, onnxruntime=table.onnxruntime, package=table.package, graphs=tuple(graphs))


def audit_graph(file: str, model: "ModelProto", table: KernelTable) -> GraphAudit:
    """Return what the provider of a table does with a graph. file: its name, for messages."""
    placed = place(typed_nodes(model, table), table)
    opsets, release = {each.domain: each.version for each in model.opset_import}, RELEASES.get(table.provider)
    versions = version_findings(file, model.ir_version, opsets, release) if release is not None else ()
    return GraphAudit(
        file=file,
        on_device=sum(each.where == "device" for each in placed),
        shapes=_ops(each for each in placed if each.where == "shape"),
        on_cpu=_ops(each for each in placed if each.where == "host" and not each.node.activation),
        findings=(*versions, *_findings(file, placed, table)),
    )


def _findings(file: str, placed: list[Placed], table: KernelTable) -> Iterator[Finding]:
    """Yield one finding for each problem; it names the first node that has it."""
    problems: dict[tuple[str, str], list[Placed]] = {}
    for each in placed:
        if each.where in ("host", "nowhere") and (each.node.activation or each.where == "nowhere"):
            problems.setdefault((f"{each.node.domain}::{each.node.op}", each.reason or ""), []).append(each)
        elif each.where == "device":
            rules = RULES[table.provider].get((each.node.domain, each.node.op))
            for rule in rules(each.node) if rules is not None else ():
                yield Finding(
                    rule.severity,
                    f"{file}: {each.node.title}: {rule.problem} (onnxruntime {table.onnxruntime}, {rule.source}).",
                )
    remedy = f"Export the model for {PROVIDERS[table.provider].title}: edgeformer export --provider {table.provider}."
    for (_, reason), nodes in problems.items():
        first, more = nodes[0], f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        # A node whose types are not known cannot be compared with kernels.
        report = unknown if any(each and each.kind is None for each in first.node.inputs) else error
        falls = (
            "runs on the CPU, inside a layer"
            if first.where == "host"
            else "does not run, since the CPU has none either"
        )
        yield report(f"{file}: {first.node.title}{more} {falls}: {reason}.", remedy)


def _ops(placed: Iterable[Placed]) -> dict[str, int]:
    return dict(sorted(Counter(each.node.op for each in placed).items()))
