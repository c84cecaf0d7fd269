"""Nodes that edgeformer's kernels compute, joined to fewer ones as a graph is opened.

    MatMulNBits → Fp16CachedAttention → MatMulNBits → AddRMSNorm → …     becomes     FusedNodes

To call a node takes onnxruntime 2 to 7 µs in a decode step, longer than many of these nodes need for their work. The
kernel of FusedNodes (`kernels/src/onnxruntime/fused_nodes.h`) runs the same kernels in the same order, so results are
the same, bit for bit. Light ops that stand between them (LIGHT) are computed by it, too; norms and functions of single
numbers among these round otherwise than onnxruntime's. The file of the bundle stays as it is.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edgeformer.contract import protobuf as onnx
from edgeformer.contract.ops import DOMAIN, FUNCTIONS, ONNX, PER_TOKEN_ATTENTION, RMS_NORM
from edgeformer.contract.protobuf import read_fields, read_texts, replaced_fields, written_field
from edgeformer.runtime.sessions.graphs.optional_inputs import content_of

NAME = "FusedNodes"
"""The op."""

PACKING = "Pack"
"""How names of ops begin that pack weights; graphs of bundles have none of them."""

CACHED = {each.name for each in FUNCTIONS if each.cache is not None} | set(PER_TOKEN_ATTENTION.values())
"""Ops whose other outputs are caches, which need not be of float32."""

LAST_AXIS, ALLOWS_ZERO = (written_field(onnx.ATTRIBUTE_INT, value) for value in (-1, 1))
"""Values of attributes as a file has them: of ops over the last axis, and of a Reshape that takes sizes of 0 for 0."""


class _Light(NamedTuple):
    """A light op, and what its nodes must have for FusedNodes to run them.

    Attributes:
        either: whether any input may be the one that a kernel has returned in float32, and not only the first.
        wants: bytes that the node's attributes must have.
        refuses: bytes that they must not have.
        has_constant: whether the second input must be a constant.
        has_one_output: whether there must be no other.
        lends: whether the result is the input, of which nothing is copied.
    """

    either: bool = False
    wants: bytes = b""
    refuses: bytes | None = None
    has_constant: bool = False
    has_one_output: bool = False
    lends: bool = False


LIGHT = {
    **dict.fromkeys(("Add", "Mul", "Div"), _Light(either=True)),
    **dict.fromkeys(("Sigmoid", "Softplus"), _Light()),
    RMS_NORM.name: _Light(wants=LAST_AXIS, has_one_output=True),
    "Split": _Light(wants=LAST_AXIS, has_constant=True),
    "Reshape": _Light(refuses=ALLOWS_ZERO, has_constant=True, lends=True),
    "Unsqueeze": _Light(has_constant=True, lends=True),
}
"""Ops of ONNX that FusedNodes runs, too, so that they do not stand between those with kernels."""

LENDING = {op for op, light in LIGHT.items() if light.lends}
"""Light ops whose result is their input."""

FLOAT = 1
"""The number of the element type in onnx.proto."""

_Field = tuple[int, memoryview]
"""Number and content of a field of a graph."""


@dataclass(frozen=True, eq=False)
class _Node:
    """A node of a graph.

    message: as the file has it. op: its name, if a kernel computes it, else "". inputs: with "" for those it lacks.
    """

    message: memoryview
    op: str
    inputs: list[str]
    outputs: list[str]


_Group = Sequence[_Node]
"""Nodes that run one behind the other: some that kernels compute, which become one node, or one of any op."""


def with_fused_nodes(path: Path, ops: Collection[str], content: bytes | None) -> bytes | None:
    """Return the content of a graph with fused nodes; what was given for one without any, or of another format.

    ops: that the library of kernels has. content: what stands in for that of the file. onnxruntime says what is wrong
    with a damaged graph.
    """
    model = content_of(path) if content is None else content
    if model is None or NAME not in ops:
        return content
    try:
        return fused(model, ops) or content
    except (IndexError, ValueError):
        return content


def fused(model: bytes, ops: Collection[str]) -> bytes | None:
    """Return a model whose nodes of these ops are fused as far as their order allows; None where none can be.

    Raises ValueError and IndexError for a damaged model.
    """
    computing = {each for each in ops if each != NAME and not each.startswith(PACKING)}
    graphs = (part for number, part in read_fields(memoryview(model)) if number == onnx.MODEL_GRAPH)
    fields = list(read_fields(next(graphs, memoryview(b""))))  # a graph has no fields of numbers
    nodes = _read_nodes(fields, computing)
    groups = [] if nodes is None else _groups(nodes)
    if all(len(group) == 1 for group in groups):
        return None
    rewritten = _rewritten(fields, groups)
    return replaced_fields(memoryview(model), lambda number, _: rewritten if number == onnx.MODEL_GRAPH else None)


def _read_nodes(fields: Sequence[_Field], ops: Collection[str]) -> list[_Node] | None:
    """Return the nodes of a graph; None for one whose nodes have graphs, which may read any value."""
    nodes = []
    floats: set[str] = set()
    constants = {_tensor_name(part) for number, part in fields if number == onnx.GRAPH_INITIALIZER}
    constants -= {_name(part) for number, part in fields if number == onnx.GRAPH_INPUT}  # who runs it may give another
    for number, message in fields:
        if number != onnx.GRAPH_NODE:
            continue
        inputs, outputs, op, domain, attributes = [], [], "", "", b""
        for each, content in read_fields(message):
            if each == onnx.NODE_INPUT:
                inputs.append(bytes(content).decode())
            elif each == onnx.NODE_OUTPUT:
                outputs.append(bytes(content).decode())
            elif each == onnx.NODE_OP_TYPE:
                op = bytes(content).decode()
            elif each == onnx.NODE_DOMAIN:
                domain = bytes(content).decode()
            elif each == onnx.NODE_ATTRIBUTE and _has_graph(content):
                return None
            elif each == onnx.NODE_ATTRIBUTE:
                attributes += bytes(content)
        # onnxruntime computes once what depends on weights alone; what kernels return is of float32.
        light = LIGHT.get(op) if domain == ONNX else None
        is_light = (
            light is not None
            and not floats.isdisjoint(inputs if light.either else inputs[:1])
            and light.wants in attributes
            and (light.refuses is None or light.refuses not in attributes)
            and (not light.has_constant or (len(inputs) == 2 and inputs[1] in constants))
            and (not light.has_one_output or len(outputs) == 1)
        )
        is_ours = is_light or (domain == DOMAIN and op in ops)
        if is_ours:
            floats.update(outputs[:1] if op in CACHED else outputs)
        nodes.append(_Node(message, op if is_ours else "", inputs, outputs))
    return nodes


def _tensor_name(tensor: memoryview) -> str:
    return next(iter(read_texts(tensor, onnx.TENSOR_NAME)), "")


def _has_graph(attribute: memoryview) -> bool:
    return any(number in (onnx.ATTRIBUTE_GRAPH, onnx.ATTRIBUTE_GRAPHS) for number, _ in read_fields(attribute))


def _groups(nodes: Sequence[_Node]) -> list[_Group]:
    """Return the nodes in an order in which they can run: in turns all that kernels compute, and all others."""
    made_by = {output: node for node in nodes for output in node.outputs if output}
    readers: dict[_Node, list[_Node]] = {node: [] for node in nodes}
    waits_for = {}
    for node in nodes:
        before = {made_by[each] for each in node.inputs if each in made_by}
        waits_for[node] = len(before)
        for each in before:
            readers[each].append(node)
    groups: list[_Group] = []
    left, stuck = list(nodes), 0
    by_kernels = False
    while left:
        group, later = [], []
        for node in left:  # a node is behind all that it reads
            if waits_for[node] or bool(node.op) != by_kernels:
                later.append(node)
                continue
            if by_kernels:
                group.append(node)
            else:
                groups.append([node])
            for reader in readers[node]:
                waits_for[reader] -= 1
        if group:
            groups.append(group)
        stuck = stuck + 1 if len(later) == len(left) else 0
        if stuck == 2:
            raise ValueError("nodes of a graph read each other's results in a circle")
        left, by_kernels = later, not by_kernels
    return groups


def _rewritten(fields: Sequence[_Field], groups: Sequence[_Group]) -> bytes:
    """Return a graph with these nodes instead of its own."""
    ends = {_name(part) for number, part in fields if number == onnx.GRAPH_OUTPUT}
    typed = {_name(part) for number, part in fields if number == onnx.GRAPH_VALUE_INFO}
    reads = Counter(each for group in groups for node in group for each in node.inputs)
    parts = []
    for group in groups:
        if len(group) == 1:
            parts.append(written_field(onnx.GRAPH_NODE, bytes(group[0].message)))
            continue
        outputs = _read_elsewhere(group, reads, ends)
        parts.append(written_field(onnx.GRAPH_NODE, _fused(group, outputs)))
        # onnxruntime infers no types of outputs that may have any.
        parts += [_float_value(each) for each in outputs if each not in ends and each not in typed]
    others = [written_field(number, bytes(part)) for number, part in fields if number != onnx.GRAPH_NODE]
    return b"".join([*parts, *others])


def _name(value: memoryview) -> str:
    return next(iter(read_texts(value, onnx.VALUE_NAME)), "")


def _read_elsewhere(group: _Group, reads: Counter[str], ends: Collection[str]) -> list[str]:
    """Return the outputs of the nodes that others read, or the graph returns."""
    here = Counter(each for node in group for each in node.inputs)
    outputs = [each for node in group for each in node.outputs if each]
    return [each for each in outputs if each in ends or reads[each] > here[each]]


def _float_value(name: str) -> bytes:
    tensor = written_field(onnx.VALUE_TYPE, written_field(onnx.TYPE_TENSOR, written_field(onnx.TENSOR_ELEMENT, FLOAT)))
    return written_field(onnx.GRAPH_VALUE_INFO, written_field(onnx.VALUE_NAME, name) + tensor)


def _fused(group: _Group, outputs: Sequence[str]) -> bytes:
    """Return the node that does the work of a group."""
    inputs: dict[str, str] = {}
    places = {"": "-"} | {each: f"o{index}" for index, each in enumerate(outputs)}
    temporaries = _Temporaries(group)
    steps = []
    for step, node in enumerate(group):
        made = {each: places.get(each) or temporaries.place(each, step) for each in node.outputs if each}
        read = []
        for each in node.inputs:
            if each not in places:
                places[each] = inputs[each] = f"i{len(inputs)}"
            read.append(places[each])
        places |= made
        written = [made.get(each) or temporaries.place("", step) for each in node.outputs]
        steps.append(" ".join([node.op, *read, "->", *written]))
        temporaries.free(step)
    name = next((bytes(part) for number, part in read_fields(group[0].message) if number == onnx.NODE_NAME), b"")
    return b"".join([
        *(written_field(onnx.NODE_INPUT, each) for each in inputs),
        *(written_field(onnx.NODE_OUTPUT, each) for each in outputs),
        written_field(onnx.NODE_NAME, name),
        written_field(onnx.NODE_OP_TYPE, NAME),
        written_field(onnx.NODE_DOMAIN, DOMAIN),
        written_field(onnx.NODE_ATTRIBUTE, _text_attribute("steps", "\n".join(steps))),
        *(attribute for step, node in enumerate(group) for attribute in _attributes(step, node)),
    ])  # fmt: skip


class _Temporaries:
    """Tensors between the nodes of a group, which are used again once nothing reads what they have."""

    def __init__(self, group: _Group) -> None:
        self._last_read = {each: step for step, node in enumerate(group) for each in node.inputs}
        for node in reversed(group):  # what a shape is given to is read as long as its result
            if node.op in LENDING:
                last = self._last_read.get(node.outputs[0], 0)
                self._last_read[node.inputs[0]] = max(last, self._last_read[node.inputs[0]])
        self._free: list[int] = []
        self._taken: dict[int, int] = {}
        self._count = 0

    def place(self, name: str, step: int) -> str:
        """Return the place of what a step writes."""
        index = self._free.pop() if self._free else self._count
        self._count = max(self._count, index + 1)
        self._taken[index] = self._last_read.get(name, step)
        return f"t{index}"

    def free(self, step: int) -> None:
        """Free the places that no later step reads."""
        over = [index for index, last in self._taken.items() if last <= step]
        for index in over:
            del self._taken[index]
        self._free += over


def _text_attribute(name: str, text: str) -> bytes:
    kind = written_field(onnx.ATTRIBUTE_TYPE, onnx.TYPE_STRING)
    return written_field(onnx.ATTRIBUTE_NAME, name) + written_field(onnx.ATTRIBUTE_STRING, text) + kind


def _attributes(step: int, node: _Node) -> Iterator[bytes]:
    """Yield the attributes of a node by the names that they have in the fused one."""
    for number, attribute in read_fields(node.message):
        if number == onnx.NODE_ATTRIBUTE:
            renamed = replaced_fields(
                attribute, lambda each, name: f"{step}.".encode() + bytes(name) if each == onnx.ATTRIBUTE_NAME else None
            )
            yield written_field(onnx.NODE_ATTRIBUTE, renamed)
