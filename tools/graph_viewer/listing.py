"""List a graph as text: one line for everything in it, starting with its kind."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx

from graph_viewer.nodes import node_text, opset_name, subgraphs_of
from graph_viewer.tensors import initializers_of, small_values, value_type

INDENT = "  "


@dataclass(frozen=True)
class Entry:
    """A line, and the lines that belong to it: the nodes of a function or of a subgraph."""

    text: str
    inside: list["Entry"] = field(default_factory=list)

    def contains(self, text: str) -> bool:
        """Return whether the entry or anything inside contains the text."""
        return text in self.text or any(entry.contains(text) for entry in self.inside)

    def lines(self, width: int | None, depth: int = 0) -> Iterator[str]:
        """Yield the entry and everything inside, wrapped to a width if one is given."""
        margin = INDENT * depth
        if width is None:
            yield margin + self.text
        else:
            # Names are never broken, so that they can be searched and copied.
            yield from textwrap.wrap(
                self.text,
                width,
                initial_indent=margin,
                subsequent_indent=margin + 2 * INDENT,
                break_long_words=False,
                break_on_hyphens=False,
            )
        for entry in self.inside:
            yield from entry.lines(width, depth + 1)


def entries(model: onnx.ModelProto) -> Iterator[Entry]:
    """Yield everything in a model in order: opsets, interface, initializers, nodes and functions."""
    yield Entry(f"model ir {model.ir_version}, by {model.producer_name or 'unknown'} {model.producer_version}".rstrip())
    yield from _opsets(model)
    yield from _graph(model.graph)
    for function in model.functions:
        yield _function(function)


def _opsets(holder: onnx.ModelProto | onnx.FunctionProto) -> Iterator[Entry]:
    for opset in holder.opset_import:
        yield Entry(f"opset {opset_name(opset.domain)} {opset.version}")


def _graph(graph: onnx.GraphProto) -> Iterator[Entry]:
    for value in graph.input:
        yield Entry(f"input {value.name} {value_type(value.type)}")
    for value in graph.output:
        yield Entry(f"output {value.name} {value_type(value.type)}")
    for tensor in initializers_of(graph):
        values = f" {small_values(tensor.inside)}" if tensor.small and tensor.inside is not None else ""
        yield Entry(f"initializer {tensor.name} {tensor.type} {tensor.bytes:,} bytes{values}")
    yield from map(_node, graph.node)


def _node(node: onnx.NodeProto) -> Entry:
    bodies = [Entry(f"graph {name}", list(_graph(graph))) for name, graph in subgraphs_of(node)]
    return Entry(f"node {node.name or '-'} {node_text(node)}", bodies)


def _function(function: onnx.FunctionProto) -> Entry:
    attributes = [*function.attribute, *(attribute.name for attribute in function.attribute_proto)]
    braces = " {" + ", ".join(attributes) + "}" if attributes else ""
    name = f"{function.domain}::{function.name}" + (f":{function.overload}" if function.overload else "")
    head = f"function {name}({', '.join(function.input)}){braces} → {', '.join(function.output)}"
    return Entry(head, [*_opsets(function), *map(_node, function.node)])
