"""The audit of the graphs of a folder for a provider whose operators alone are known."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from edgeformer.check.folder import Folder
from edgeformer.check.published.tables import OPERATOR_TABLES, OperatorTable
from edgeformer.errors import require

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

Functions = Mapping[tuple[str, str], "FunctionProto"]
ONNX = ("", "ai.onnx")


@dataclass(frozen=True, kw_only=True)
class OperatorCounts:
    """The nodes of a graph by what a table says of their operators.

    Attributes:
        file: path in the folder.
        taken: nodes of published operators, by name.
        limits: what such operators must keep to, by name; whether they do is not compared.
        left: nodes of other operators, which run on the CPU, by name.
    """

    file: str
    taken: dict[str, int]
    limits: dict[str, str]
    left: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class OperatorAudit:
    """The audit of a folder by a provider's published operators. source, commit: the list, and its version."""

    provider: str
    title: str
    source: str
    commit: str
    graphs: tuple[OperatorCounts, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the audit as JSON data."""
        return asdict(self)


def audit_operators(folder: Folder, provider: str) -> OperatorAudit:
    """Return which nodes of each graph a provider takes, by its operators. Functions count as what is in them."""
    onnx, table = require("onnx", "check"), OPERATOR_TABLES[provider]
    graphs = tuple(
        count_operators(name, onnx.load(folder.path / name, load_external_data=False), table) for name in folder.graphs
    )
    return OperatorAudit(provider=provider, title=table.title, source=table.source, commit=table.commit, graphs=graphs)


def count_operators(file: str, model: "ModelProto", table: OperatorTable) -> OperatorCounts:
    """Return the nodes of a graph by what a table says of their operators. file: its name, for the report."""
    functions = {(each.domain, each.name): each for each in model.functions}
    counts = Counter(_names(model.graph.node, functions))
    taken = {name: count for name, count in sorted(counts.items()) if name in table.ops}
    return OperatorCounts(
        file=file,
        taken=taken,
        limits={name: table.ops[name] for name in taken if table.ops[name]},
        left={name: count for name, count in sorted(counts.items()) if name not in table.ops},
    )


def _names(nodes: Iterable["NodeProto"], functions: Functions) -> Iterator[str]:
    """Yield the operators of nodes, of those in their subgraphs, and of the bodies of functions that they call."""
    for node in nodes:
        function = functions.get((node.domain, node.op_type))
        if function is not None:
            yield from _names(function.node, functions)
            continue
        if node.op_type != "Constant":
            yield node.op_type if node.domain in ONNX else f"{node.domain}::{node.op_type}"
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _names(graph.node, functions)
