"""Select the part of a graph to draw: one block, or all nodes whose names start with a prefix."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import click
import onnx

from graph_viewer.nodes import ONNX_DOMAINS, values_read
from graph_viewer.shapes import Dims, shapes_of
from graph_viewer.tensors import Initializer, as_initializer, constant_of, initializers_of, small_values

BLOCK = re.compile(r"(?:.*\.)?blocks\.(\d+)(?=[./])")
"""Start of node names in a block: `blocks.0.` or `blocks.0/`, optionally after a prefix such as `decoder.`."""

MOST_CHOICES = 20
"""Largest number of names that an error message lists."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A box of the picture: a node, or a pill for an input or output of the selection.

    domain: of the op, empty for ONNX's own; None for a pill. constants: the values of small ones, in order. weights:
    names and dims. outputs: the values that other nodes read, with their dims if known.
    """

    title: str
    name: str
    domain: str | None
    weights: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    outputs: tuple[tuple[str, Dims | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """Boxes, and lines between them: (box, index of its output, box). prefix: the common start of the nodes' names."""

    prefix: str
    parts: tuple[Part, ...]
    lines: tuple[tuple[int, int, int], ...]

    @property
    def nodes(self) -> int:
        """Return the number of nodes, without pills."""
        return sum(part.domain is not None for part in self.parts)


def block_prefix(graph: onnx.GraphProto, number: int) -> str:
    """Return the prefix of node names in a block. Raises ClickException unless exactly one block has this number."""
    found = dict.fromkeys((match[0], int(match[1])) for node in graph.node if (match := BLOCK.match(node.name)))
    prefixes = [prefix for prefix, which in found if which == number]
    if len(prefixes) == 1:
        return prefixes[0]
    if prefixes:
        raise click.ClickException(f"there are several blocks {number}. Choose one with --match: {', '.join(prefixes)}")
    numbers = sorted({which for _, which in found})
    if not numbers:
        raise click.ClickException(f"no node's name starts with blocks.N. Choose nodes with --match: {_starts(graph)}")
    raise click.ClickException(f"there is no block {number}. There are: {', '.join(map(str, numbers))}")


def block_of(model: onnx.ModelProto, prefix: str) -> Block:
    """Return the nodes whose names start with a prefix. A Constant node is shown in the boxes that read it.

    Raises ClickException if there are none.
    """
    graph = model.graph
    constants = {node.output[0]: tensor for node in graph.node if (tensor := constant_of(node)) is not None}
    tensors = {tensor.name: tensor for tensor in initializers_of(graph)}
    tensors |= {name: as_initializer(name, tensor) for name, tensor in constants.items()}
    inside = _starting(prefix)
    nodes = [node for node in graph.node if inside(node.name) and constant_of(node) is None]
    if not nodes:
        raise click.ClickException(f"no node's name starts with {prefix!r}. Names start with: {_starts(graph)}")

    shapes = shapes_of(model)
    makers = {value: node for node in graph.node for value in node.output if value}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for value in dict.fromkeys(values_read(node)):
            readers.setdefault(value, []).append(node)
    results = {value.name for value in graph.output}
    inner = {value for node in nodes for value in node.output if value}
    outer = {value.name for value in graph.input} | makers.keys()
    chosen = {id(node) for node in nodes}

    parts: list[Part] = []
    lines: list[tuple[int, int, int]] = []
    ports: dict[str, tuple[int, int]] = {}

    def add(part: Part) -> int:
        ports.update({value: (len(parts), port) for port, (value, _) in enumerate(part.outputs)})
        parts.append(part)
        return len(parts) - 1

    read = dict.fromkeys(value for node in nodes for value in values_read(node))
    for value in (value for value in read if value in outer and value not in inner and value not in tensors):
        maker = makers.get(value)
        origin = f"from {maker.name or maker.op_type}" if maker is not None else "input"
        add(Part(title=value, name=origin, domain=None, outputs=((value, shapes.get(value)),)))
    boxes = []
    for node in nodes:
        held = [tensors[value] for value in dict.fromkeys(node.input) if value in tensors]
        read_outputs = [value for value in node.output if value and (value in readers or value in results)]
        boxes.append(add(_node_part(node, prefix, held, [(value, shapes.get(value)) for value in read_outputs])))
    for box, node in zip(boxes, nodes, strict=True):
        sources = dict.fromkeys(ports[value] for value in values_read(node) if value in ports)
        lines += [(tail, port, box) for tail, port in sources]
    for value in (value for node in nodes for value in node.output if value):
        others = [node for node in readers.get(value, ()) if id(node) not in chosen]
        if others or value in results:
            tail, port = ports[value]
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            name = "output" if value in results else f"to {others[0].name or others[0].op_type}{more}"
            lines.append((tail, port, len(parts)))
            parts.append(Part(title=value, name=name, domain=None))
    return Block(prefix=prefix, parts=tuple(parts), lines=tuple(lines))


def _node_part(
    node: onnx.NodeProto, prefix: str, held: Sequence[Initializer], outputs: Iterable[tuple[str, Dims | None]]
) -> Part:
    """Return the box of a node. held: the constants and weights that it reads."""

    def short(name: str) -> str:
        return name.removeprefix(prefix).lstrip("./") or name

    return Part(
        title=node.op_type,
        name=short(node.name),
        domain="" if node.domain in ONNX_DOMAINS else node.domain,
        weights=tuple(f"{short(tensor.name)} {list(tensor.dims)}" for tensor in held if not tensor.small),
        constants=tuple(_values(tensor) for tensor in held if tensor.small),
        outputs=tuple(outputs),
    )


def _starting(prefix: str) -> Callable[[str], bool]:
    """Return a predicate on names: `blocks.1` does not match `blocks.10`, which continues the number."""
    pattern = re.compile(re.escape(prefix) + (r"(?!\d)" if prefix[-1:].isdigit() else ""))
    return lambda name: pattern.match(name) is not None


def _values(tensor: Initializer) -> str:
    assert tensor.inside is not None
    return small_values(tensor.inside)


def _starts(graph: onnx.GraphProto) -> str:
    """List the first parts of all names, for an error message."""
    starts = list(dict.fromkeys(re.split(r"[./](?!\d)", node.name)[0] for node in graph.node if node.name))
    more = f" and {len(starts) - MOST_CHOICES} more" if len(starts) > MOST_CHOICES else ""
    return (", ".join(starts[:MOST_CHOICES]) + more) or "nothing, as no node has a name"
