"""Count the nodes of each op in a graph, and the bytes of the parameters that they read."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from rich.table import Table

from graph_viewer.nodes import ONNX_DOMAINS, opset_name, subgraphs_of
from graph_viewer.tensors import initializers_of

Op = tuple[str, str]
"""Domain and type; the domain of ONNX's own ops is `ai.onnx`."""


@dataclass(frozen=True, kw_only=True)
class OpCount:
    """Nodes of one op. bytes: of the initializers that they read. shared: bytes of those that other ops read too."""

    nodes: int
    bytes: int
    shared: int


@dataclass(frozen=True, kw_only=True)
class Counts:
    """All ops of a graph and its subgraphs; a function counts once per call.

    bytes: of the initializers that any node reads, each once. unread: names of the others. functions: number of nodes
    in the body of each.
    """

    opsets: dict[str, int]
    ops: dict[Op, OpCount]
    nodes: int
    bytes: int
    unread: tuple[str, ...]
    functions: dict[str, int]

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        domains: dict[str, dict[str, dict[str, int]]] = {}
        for (domain, op), count in sorted(self.ops.items()):
            figures = {"nodes": count.nodes, "bytes": count.bytes, "shared_bytes": count.shared}
            domains.setdefault(domain, {})[op] = figures
        return {
            "opsets": self.opsets,
            "ops": domains,
            "nodes": self.nodes,
            "bytes": self.bytes,
            "unread_initializers": list(self.unread),
            "functions": self.functions,
        }


def count_ops(model: onnx.ModelProto) -> Counts:
    """Count from the declared types and shapes; no weights are read."""
    nodes: Counter[Op] = Counter()
    readers: dict[int, set[Op]] = {}
    sizes: dict[int, int] = {}
    names: dict[int, str] = {}
    for scope, node in _nodes(model.graph, {}, sizes, names):
        op = _op(node)
        nodes[op] += 1
        for value in node.input:
            if value in scope:
                readers.setdefault(scope[value], set()).add(op)

    def read_by(op: Op, fewest: int) -> int:
        return sum(sizes[tensor] for tensor, ops in readers.items() if op in ops and len(ops) >= fewest)

    return Counts(
        opsets={opset_name(opset.domain): opset.version for opset in model.opset_import},
        ops={op: OpCount(nodes=count, bytes=read_by(op, 1), shared=read_by(op, 2)) for op, count in nodes.items()},
        nodes=nodes.total(),
        bytes=sum(sizes[tensor] for tensor in readers),
        unread=tuple(names[tensor] for tensor in sizes if tensor not in readers),
        functions={f"{function.domain}::{function.name}": len(function.node) for function in model.functions},
    )


def _nodes(
    graph: onnx.GraphProto, outer: dict[str, int], sizes: dict[int, int], names: dict[int, str]
) -> Iterator[tuple[dict[str, int], onnx.NodeProto]]:
    """Yield every node of a graph and its subgraphs, with the initializer number behind each name that it can see.

    Fills in bytes and names of initializers by number: a subgraph may reuse a name for another tensor.
    """
    scope = dict(outer)
    for tensor in initializers_of(graph):
        number = len(sizes)
        scope[tensor.name], sizes[number], names[number] = number, tensor.bytes, tensor.name
    for node in graph.node:
        yield scope, node
        for _, body in subgraphs_of(node):
            yield from _nodes(body, scope, sizes, names)


def _op(node: onnx.NodeProto) -> Op:
    return (ONNX_DOMAINS[1] if node.domain in ONNX_DOMAINS else node.domain, node.op_type)


def table(counts: dict[str, Counts]) -> Table:
    """Return a table with one pair of columns per graph. counts: by the names of the graphs."""
    shown = Table(pad_edge=False, box=None, header_style="bold")
    shown.add_column("")
    for name in counts:
        shown.add_column(name, justify="right")
        shown.add_column("bytes", justify="right", header_style="dim")
    for domain in _together([list(count.opsets) for count in counts.values()]):
        versions = (count.opsets.get(domain) for count in counts.values())
        shown.add_row(f"opset {domain}", *_pairs([(version, None) for version in versions]))
    ops = sorted({op for count in counts.values() for op in count.ops})
    for domain in dict.fromkeys(domain for domain, _ in ops):
        shown.add_row()
        shown.add_row(domain, style="bold")
        for op in (op for op in ops if op[0] == domain):
            cells = [count.ops.get(op) for count in counts.values()]
            pairs = _pairs([(cell.nodes if cell else None, _bytes(cell)) for cell in cells])
            shown.add_row(f"  {op[1]}", *pairs)
    shown.add_row()
    shown.add_row("total", *_pairs([(count.nodes, f"{count.bytes:,}") for count in counts.values()]), style="bold")
    return shown


def notes(counts: dict[str, Counts]) -> Iterator[str]:
    """Yield what the table does not show: the meaning of its stars, unread initializers, and the nodes of functions."""
    if any(op.shared for count in counts.values() for op in count.ops.values()):
        yield "* some of these initializers are read by other ops too; the total counts each once"
    for name, count in counts.items():
        if count.unread:
            yield f"{name}: no node reads {', '.join(count.unread)}"
        for function, nodes in count.functions.items():
            yield f"{name}: function {function} of {nodes} nodes"


def _bytes(cell: OpCount | None) -> str | None:
    return None if cell is None or not cell.bytes else f"{'*' if cell.shared else ''}{cell.bytes:,}"


def _pairs(cells: Sequence[tuple[int | None, str | None]]) -> list[str]:
    """Return counts and bytes alternately; a missing value is a dot."""
    return [text for count, size in cells for text in ("·" if not count else f"{count:,}", size or "")]


def _together(lists: Sequence[Sequence[str]]) -> list[str]:
    return sorted({item for items in lists for item in items})
