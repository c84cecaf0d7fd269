"""Describe a graph's structure independently of the names of its values and the order of its nodes.

A Constant node counts as the tensor that it holds.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, NodeProto

from graph_viewer.nodes import attribute_text, op_name, subgraphs_of, values_read
from graph_viewer.tensors import Initializer, as_initializer, constant_of, digest, initializers_of, small_values


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a value comes from.

    label: its name in signatures: a constant's type and values, the name of a weight or an input, or the op of its
    node. digest: hash of everything that it is computed from. tensor: its name, if it is a tensor. node, output: number
    of the node that computes it, if any, and index of the output.
    """

    label: str
    digest: str
    tensor: str | None = None
    node: int | None = None
    output: int = 0


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A node with its inputs.

    sources: of its inputs, and of the values that each of its subgraphs captures. bodies: hashes of these subgraphs, by
    name. signature: the node and its direct inputs, which a change further up does not affect. digest: the node and
    everything above it.
    """

    node: NodeProto
    sources: tuple[Source, ...]
    bodies: dict[str, str]
    signature: str
    digest: str


@dataclass
class Tensors:
    """Identify the tensors of two graphs: by value, or by name if either graph stores them in another file.

    outside: names of external tensors. names: the name of each tensor by its identity, from the first graph that has
    it.
    """

    outside: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)

    def source(self, tensor: Initializer) -> Source:
        """Return a tensor as the source of a value."""
        identity = self.identity(tensor)
        if tensor.small and tensor.inside is not None:
            values = small_values(tensor.inside)
            return Source(label=f"{tensor.type} {values}", digest=_hash(identity), tensor=values)
        name = self.names.setdefault(identity, tensor.name)
        return Source(label=f"tensor {name}", digest=_hash(identity), tensor=name)

    def identity(self, tensor: Initializer) -> str:
        """Return what identifies a tensor."""
        by_name = tensor.inside is None or tensor.name in self.outside
        return f"{tensor.type} {tensor.name if by_name or tensor.inside is None else digest(tensor.inside)}"


@dataclass(frozen=True, kw_only=True)
class Structure:
    """A graph, a subgraph or the body of a function.

    vertices: its nodes, each after those that it reads from, in the order in which outputs need them; unused nodes come
    last. outputs: their sources by name. tensors: large ones (not part of a label), by identity. sources: of all values
    by name. free: of the values that a subgraph captures.
    """

    vertices: tuple[Vertex, ...]
    outputs: dict[str, Source]
    tensors: dict[str, Initializer]
    sources: dict[str, Source]
    free: dict[str, Source]

    @property
    def digest(self) -> str:
        """Return a hash of the structure, with outputs by order and not by name."""
        nodes = sorted(vertex.digest for vertex in self.vertices)
        return _hash("graph", *nodes, "outputs", *(source.digest for source in self.outputs.values()))


def structure_of(
    holder: onnx.GraphProto | onnx.FunctionProto, tensors: Tensors, *, named_inputs: bool = False
) -> Structure:
    """Return the structure of a graph or a function's body.

    named_inputs: identify inputs by name (for a whole model) instead of by order.
    """
    graph = holder if isinstance(holder, onnx.GraphProto) else None
    inputs = [value.name for value in graph.input] if graph else list(holder.input)
    outputs = [value.name for value in graph.output] if graph else list(holder.output)
    known = list(initializers_of(graph)) if graph else []
    constants = [(node, constant_of(node)) for node in holder.node]
    known += [as_initializer(node.output[0], tensor) for node, tensor in constants if tensor is not None]
    nodes = [node for node, tensor in constants if tensor is None]

    sources = {"": Source(label="-", digest="")}
    for number, name in enumerate(inputs):
        label = f"input {name if named_inputs else number}"
        sources[name] = Source(label=label, digest=_hash(label))
    sources |= {tensor.name: tensors.source(tensor) for tensor in known}
    free: dict[str, Source] = {}
    vertices: list[Vertex] = []
    for node in _in_order(nodes, outputs):
        bodies = {name: structure_of(body, tensors) for name, body in subgraphs_of(node)}
        # A value that two subgraphs capture is listed twice: which one captures what is structure.
        taken = [name for body in bodies.values() for name in body.free]
        for name in (*node.input, *taken):
            if name not in sources:
                label = f"outer {len(free)}"
                sources[name] = free[name] = Source(label=label, digest=_hash(label))
        above = tuple(sources[name] for name in (*_without_absent(node.input), *taken))
        itself = _itself(node, bodies)
        vertex = Vertex(
            node=node,
            sources=above,
            bodies={name: body.digest for name, body in bodies.items()},
            signature="\n".join([itself, *(source.label for source in above)]),
            digest=_hash(itself, *(source.digest for source in above)),
        )
        for output, name in enumerate(node.output):
            label = f"{op_name(node)}.{output}" if output else op_name(node)
            if name:
                sources[name] = Source(
                    label=label, digest=_hash(vertex.digest, str(output)), node=len(vertices), output=output
                )
        vertices.append(vertex)
    for name in outputs:
        if name not in sources:
            sources[name] = free[name] = Source(label=f"outer {len(free)}", digest=_hash(f"outer {len(free)}"))
    return Structure(
        vertices=tuple(vertices),
        outputs={name: sources[name] for name in outputs},
        tensors={tensors.identity(tensor): tensor for tensor in known if not tensor.small},
        sources=sources,
        free=free,
    )


def _itself(node: NodeProto, bodies: dict[str, Structure]) -> str:
    """Return everything about a node except what it reads."""
    attributes = sorted(node.attribute, key=lambda attribute: attribute.name)
    plain = [item for item in attributes if item.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)]
    return "\n".join([
        f"{op_name(node)} {node.overload}",
        # Which outputs are present can change what an op does; their names cannot.
        "".join("x" if name else "-" for name in _without_absent(node.output)),
        *(f"{item.name}={AttributeProto.AttributeType.Name(item.type)} {attribute_text(item)}" for item in plain),
        *(f"{name}={body.digest}" for name, body in bodies.items()),
    ])  # fmt: skip


def _in_order(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> Iterator[NodeProto]:
    """Yield each node after those that it reads from: in the order of a walk from the outputs, then the rest."""
    producers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    done: set[int] = set()
    roots = [producers[name] for name in outputs if name in producers]
    for root in (*roots, *range(len(nodes))):
        # Graphs are deeper than Python's recursion limit, so the walk has a stack of its own.
        stack = [] if root in done else [(root, iter(values_read(nodes[root])))]
        done.add(root)
        while stack:
            number, rest = stack[-1]
            above = next((producers[name] for name in rest if producers.get(name, number) not in done), None)
            if above is None:
                stack.pop()
                yield nodes[number]
            else:
                done.add(above)
                stack.append((above, iter(values_read(nodes[above]))))


def _without_absent(names: Sequence[str]) -> list[str]:
    """Drop absent names at the end, which are optional."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
