"""Compare two graphs and list their differences as hunks of lines.

Names of values and nodes and the order of nodes do not count. Every node without a match is in a hunk, and so is every
matched pair that reads different values. If there are no hunks, and interfaces and weights are equal, so are the
graphs.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import onnx

from graph_viewer.match import Match, Names
from graph_viewer.nodes import attribute_text, opset_name
from graph_viewer.structure import Source, Structure, Tensors, structure_of
from graph_viewer.tensors import initializers_of, value_type


@dataclass(frozen=True)
class Line:
    """A line of a hunk: only in the first graph (`-`), only in the second (`+`), or in both (a space)."""

    mark: str
    text: str


@dataclass(frozen=True)
class Hunk:
    """Adjacent lines, and where they are."""

    where: str
    lines: tuple[Line, ...]


def difference(first: onnx.ModelProto, second: onnx.ModelProto, context: int = 2) -> Iterator[Hunk]:
    """Yield all differences; none if the graphs are equal. context: number of unchanged nodes around a change."""
    models = (first, second)
    outside = {tensor.name for model in models for tensor in initializers_of(model.graph) if tensor.inside is None}
    tensors = Tensors(outside)
    yield from _listed("interface", *map(_interface, models))
    left, right = (structure_of(model.graph, tensors, named_inputs=True) for model in models)
    both = {name: (name, name) for name in left.outputs if name in right.outputs}
    yield from _bodies(left, right, both, "", context)

    functions = [{_function_name(function): function for function in model.functions} for model in models]
    yield from _listed("functions", *functions)
    for name in (name for name in functions[0] if name in functions[1]):
        ours, theirs = (of[name] for of in functions)
        yield from _listed(name, _signature(ours), _signature(theirs))
        outputs = {str(index): names for index, names in enumerate(zip(ours.output, theirs.output, strict=False))}
        yield from _bodies(structure_of(ours, tensors), structure_of(theirs, tensors), outputs, f"{name} ", context)


def _function_name(function: onnx.FunctionProto) -> str:
    return f"function {function.domain}::{function.name} {function.overload}".strip()


def _interface(model: onnx.ModelProto) -> list[str]:
    return [
        f"ir {model.ir_version}",
        *sorted(f"opset {opset_name(opset.domain)} {opset.version}" for opset in model.opset_import),
        *(f"input {value.name} {value_type(value.type)}" for value in model.graph.input),
        *(f"output {value.name} {value_type(value.type)}" for value in model.graph.output),
    ]


def _signature(function: onnx.FunctionProto) -> list[str]:
    return [
        *sorted(f"opset {opset_name(opset.domain)} {opset.version}" for opset in function.opset_import),
        f"{len(function.input)} inputs, {len(function.output)} outputs",
        *sorted(f"attribute {name}" for name in function.attribute),
        *sorted(f"attribute {attribute.name}={attribute_text(attribute)}" for attribute in function.attribute_proto),
    ]


def _listed(where: str, first: Iterable[str], second: Iterable[str]) -> Iterator[Hunk]:
    """Compare plain lists."""
    left, right = list(first), list(second)
    lines: list[Line] = []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind != "equal":
            lines += [*(Line("-", text) for text in left[i:i_end]), *(Line("+", text) for text in right[j:j_end])]
    if lines:
        yield Hunk(where, tuple(lines))


def _bodies(
    first: Structure, second: Structure, outputs: dict[str, tuple[str, str]], where: str, context: int
) -> Iterator[Hunk]:
    """Compare tensors, nodes, and the sources of outputs. outputs: name → names in both graphs."""
    yield from _tensors(first, second, f"{where}initializers")
    match = Match(first, second)
    yield from _hunks(list(_merged(match)), f"{where}nodes", context)
    lines: list[Line] = []
    for called, (ours, theirs) in outputs.items():
        sources = first.outputs[ours], second.outputs[theirs]
        # If both come from nodes that are differences themselves, those are reported already.
        if not match.same(*sources) and not match.both_alone(*sources):
            lines += [
                Line("-", f"output {called} is {_origin(sources[0], first)}"),
                Line("+", f"output {called} is {_origin(sources[1], second)}"),
            ]
    if lines:
        yield Hunk(f"{where}outputs", tuple(lines))


def _tensors(first: Structure, second: Structure, where: str) -> Iterator[Hunk]:
    """Yield weights that only one graph has; two of one name are one changed weight."""
    gone = {tensor.name: tensor.type for key, tensor in first.tensors.items() if key not in second.tensors}
    come = {tensor.name: tensor.type for key, tensor in second.tensors.items() if key not in first.tensors}
    lines: list[Line] = []
    for name in dict.fromkeys((*gone, *come)):
        if name in gone:
            lines.append(Line("-", f"{name} {gone[name]}"))
        if name in come:
            other = ", other values" if come[name] == gone.get(name) else ""
            lines.append(Line("+", f"{name} {come[name]}{other}"))
    if lines:
        yield Hunk(where, tuple(lines))


def _origin(source: Source, graph: Structure) -> str:
    """Describe where an output comes from."""
    if source.node is None:
        return source.tensor or source.label
    node = graph.vertices[source.node].node
    return f"output {source.output} of {node.name or source.label}"


def _merged(match: Match) -> Iterator[Line]:
    """Yield all nodes of both graphs in the order of the first; a node of the second follows its own predecessor."""
    first, second = match.first, match.second
    called = Names(match)
    follow: defaultdict[int, list[int]] = defaultdict(list)
    places: dict[int, int] = {}
    last = -1
    for number, vertex in enumerate(second.vertices):
        if number in match.theirs:
            last = match.theirs[number]
        else:
            # After the node before it, and after everything that it reads.
            last = max(last, *(places[source.node] for source in vertex.sources if source.node is not None), -1)
            follow[last].append(number)
        places[number] = last
    waiting = follow[-1]
    for number, vertex in enumerate(first.vertices):
        if number not in match.ours:
            yield Line("-", called.in_first(vertex))
            continue
        # Added lines follow removed ones.
        yield from (Line("+", called.in_second(second.vertices[other])) for other in waiting)
        waiting = follow[number]
        other = second.vertices[match.ours[number]]
        if match.same_inputs(vertex, other):
            yield Line(" ", called.in_first(vertex))
        else:
            yield Line("-", called.in_first(vertex))
            yield Line("+", called.in_second(other))
    yield from (Line("+", called.in_second(second.vertices[other])) for other in waiting)


def _hunks(lines: Sequence[Line], where: str, context: int) -> Iterator[Hunk]:
    """Yield changed lines with context; changes whose contexts touch share a hunk."""
    changed = [number for number, line in enumerate(lines) if line.mark != " "]
    while changed:
        start = changed[0]
        end = start
        while changed and changed[0] <= end + 2 * context + 1:
            end = changed.pop(0)
        begin, until = max(start - context, 0), min(end + context + 1, len(lines))
        marks = "".join(line.mark for line in lines[:until])
        spans = []
        for absent in "+-":
            before = len(marks[:begin].replace(absent, ""))
            spans.append(f"{before + 1},{len(marks[begin:].replace(absent, ''))}")
        yield Hunk(f"{where} -{spans[0]} +{spans[1]}", tuple(lines[begin:until]))
