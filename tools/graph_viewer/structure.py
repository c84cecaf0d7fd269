"""What a graph is, whatever its values are called and in whatever order its nodes are listed.

A Constant node counts as the tensor that it holds: where a constant is kept is no structure.
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

    label: what signatures call it: a constant's type and values, the name of a weight or an input, the op of the node
    that computes it. digest: of all that it is computed from. tensor: what people call it, if it is a tensor. node,
    output: the node that computes it, if any, by its number.
    """

    label: str
    digest: str
    tensor: str | None = None
    node: int | None = None
    output: int = 0


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A node among its neighbours.

    sources: of its inputs, and of the values that each of its subgraphs takes from around it. bodies: hashes of these
    subgraphs, by name. signature: the node and its neighbours above, which a change further up leaves as it is. digest:
    the node and everything above it.
    """

    node: NodeProto
    sources: tuple[Source, ...]
    bodies: dict[str, str]
    signature: str
    digest: str


@dataclass
class Tensors:
    """How the tensors of two graphs are told apart: by their values, or by name where either graph stores them outside.

    outside: names of tensors that a graph stores outside. names: what each tensor is called, by its identity: whatever
    the first graph that has it calls it.
    """

    outside: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)

    def source(self, tensor: Initializer) -> Source:
        """A tensor as the source of a value."""
        identity = self.identity(tensor)
        if tensor.small and tensor.inside is not None:
            values = small_values(tensor.inside)
            return Source(label=f"{tensor.type} {values}", digest=_hash(identity), tensor=values)
        name = self.names.setdefault(identity, tensor.name)
        return Source(label=f"tensor {name}", digest=_hash(identity), tensor=name)

    def identity(self, tensor: Initializer) -> str:
        """What makes a tensor this one and no other."""
        by_name = tensor.inside is None or tensor.name in self.outside
        return f"{tensor.type} {tensor.name if by_name or tensor.inside is None else digest(tensor.inside)}"


@dataclass(frozen=True, kw_only=True)
class Structure:
    """A graph, a subgraph or the body of a function.

    vertices: its nodes, each right behind those that it reads from, in the order in which the outputs ask for them;
    nodes that no output asks for stand last. outputs: where they come from, by name. tensors: those with too many
    values to be part of a label, by identity. sources: of all values by name. free: of those around a subgraph.
    """

    vertices: tuple[Vertex, ...]
    outputs: dict[str, Source]
    tensors: dict[str, Initializer]
    sources: dict[str, Source]
    free: dict[str, Source]

    @property
    def digest(self) -> str:
        """Hash of the whole, by the order of the outputs and not by their names."""
        nodes = sorted(vertex.digest for vertex in self.vertices)
        return _hash("graph", *nodes, "outputs", *(source.digest for source in self.outputs.values()))


def structure_of(
    holder: onnx.GraphProto | onnx.FunctionProto, tensors: Tensors, *, named_inputs: bool = False
) -> Structure:
    """Take a graph or a function's body apart.

    named_inputs: whether inputs are known by their names, as those of a whole model are, or else by their order.
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
        # A value that two subgraphs take is there twice: which of them takes what is structure.
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
    """Everything about a node but what it reads."""
    attributes = sorted(node.attribute, key=lambda attribute: attribute.name)
    plain = [item for item in attributes if item.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)]
    return "\n".join([
        f"{op_name(node)} {node.overload}",
        # Which outputs there are can change what an op does; how they are called can't.
        "".join("x" if name else "-" for name in _without_absent(node.output)),
        *(f"{item.name}={AttributeProto.AttributeType.Name(item.type)} {attribute_text(item)}" for item in plain),
        *(f"{name}={body.digest}" for name, body in bodies.items()),
    ])  # fmt: skip


def _in_order(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> Iterator[NodeProto]:
    """Each node after those that it reads from: as a walk from the outputs comes to them, then the rest."""
    producers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    done: set[int] = set()
    roots = [producers[name] for name in outputs if name in producers]
    for root in (*roots, *range(len(nodes))):
        # Graphs are deeper than Python's stack: the walk keeps its own, of nodes and the inputs still to visit.
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
    """Without the absent ones at the end, which may as well be left out."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
