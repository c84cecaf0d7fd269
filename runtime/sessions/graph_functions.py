"""Count the calls of functions of domain `edgeformer` in a graph, without the package onnx.

A file of ONNX is a message of protocol buffers. Only its nodes and functions are read; weights are skipped.
https://protobuf.dev/programming-guides/encoding/ has the format, and onnx.proto the numbers of the fields.
"""

import mmap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeformer.errors import BundleError

DOMAIN = b"edgeformer"
"""The domain of functions for which there may be kernels."""

Function = tuple[str, str]
"""Name and overload of a function."""

MODEL_GRAPH, MODEL_FUNCTIONS = 7, 25
GRAPH_NODE = 1
NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN, NODE_OVERLOAD = 4, 5, 7, 8
ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 6, 11
FUNCTION_NAME, FUNCTION_NODE, FUNCTION_DOMAIN, FUNCTION_OVERLOAD = 1, 7, 10, 13

WITH_GRAPHS = (b"If", b"Loop", b"Scan")
"""Ops that have graphs in their attributes."""


CHEAP_OPS = frozenset(
    b"Add Cast CastLike Clip Concat Constant ConstantOfShape Div Equal Erf Exp Expand Gather GatherBlockQuantized "
    b"GatherElements GatherND Gelu Greater LayerNormalization Less LessOrEqual Max Min Mul Neg Pow Range ReduceMean "
    b"ReduceSum Relu Reshape Shape Sigmoid SimplifiedLayerNormalization SkipLayerNormalization "
    b"SkipSimplifiedLayerNormalization Slice Softplus Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where".split()
)
"""Ops that take a small part of the time of a model, so that one thread may do them all."""


@dataclass(frozen=True)
class FunctionCalls:
    """The calls of functions of the domain: in the graph, and in the body of each function.

    only_light: whether all other nodes of the graph are of ops in CHEAP_OPS.
    """

    graph: Counter[Function]
    bodies: Mapping[Function, Counter[Function]]
    only_light: bool

    def split(self, ops: Collection[str]) -> tuple[Counter[str], Counter[str]]:
        """Return the calls that kernels run and those whose bodies run, by name. ops: functions that have a kernel.

        Calls in a body count where the body runs: not in that of a function whose kernel runs. Raises BundleError for
        functions that call themselves, which onnxruntime refuses.
        """
        kernels: Counter[str] = Counter()
        bodies: Counter[str] = Counter()
        calls = self.graph
        for _ in range(len(self.bodies) + 1):  # functions within functions are no deeper than there are functions
            inner: Counter[Function] = Counter()
            for function, count in calls.items():
                if function[0] in ops:
                    kernels[function[0]] += count
                    continue
                bodies[function[0]] += count
                for each, times in self.bodies.get(function, {}).items():
                    inner[each] += count * times
            calls = inner
        if calls:
            raise BundleError(f"a function of the graph calls itself: {next(iter(calls))[0]}. Export the model again.")
        return kernels, bodies


def function_calls(path: Path) -> FunctionCalls:
    """Return the calls of functions in a file. Raises BundleError for a file that is no ONNX model."""
    try:
        with path.open("rb") as file:
            return _calls(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (IndexError, ValueError, RecursionError) as problem:
        raise BundleError(f"{path} is not an ONNX graph, or is damaged. Copy or export it again.") from problem


def _calls(model: memoryview) -> FunctionCalls:
    graph: Counter[Function] = Counter()
    bodies: dict[Function, Counter[Function]] = {}
    only_light = True
    for field, content in _fields(model):
        if field == MODEL_GRAPH:
            graph.update(_called(content, GRAPH_NODE))
            only_light = all(_is_light(node) for each, node in _fields(content) if each == GRAPH_NODE)
        elif field == MODEL_FUNCTIONS:
            texts = dict(_fields(content))
            if bytes(texts.get(FUNCTION_DOMAIN, b"")) == DOMAIN:
                function = _text(texts, FUNCTION_NAME), _text(texts, FUNCTION_OVERLOAD)
                bodies[function] = Counter(_called(content, FUNCTION_NODE))
    return FunctionCalls(graph, bodies, only_light)


def _is_light(node: memoryview) -> bool:
    texts = dict(_fields(node))
    return bytes(texts.get(NODE_DOMAIN, b"")) == DOMAIN or bytes(texts.get(NODE_OP_TYPE, b"")) in CHEAP_OPS


def _called(holder: memoryview, node_field: int) -> Iterator[Function]:
    """Yield the functions that the nodes of a graph or function call, those in branches included."""
    for field, node in _fields(holder):
        if field != node_field:
            continue
        texts = dict(_fields(node))
        if bytes(texts.get(NODE_DOMAIN, b"")) == DOMAIN:
            yield _text(texts, NODE_OP_TYPE), _text(texts, NODE_OVERLOAD)
        elif bytes(texts.get(NODE_OP_TYPE, b"")) in WITH_GRAPHS:
            for each, attribute in _fields(node):
                if each == NODE_ATTRIBUTE:
                    yield from _called_in_attribute(attribute)


def _called_in_attribute(attribute: memoryview) -> Iterator[Function]:
    for field, graph in _fields(attribute):
        if field in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            yield from _called(graph, GRAPH_NODE)


def _text(texts: Mapping[int, memoryview], field: int) -> str:
    return bytes(texts.get(field, b"")).decode()


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of the fields of a message that have a length; numbers are skipped."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(message, at)
                if at + size > len(message):
                    raise ValueError("a field ends behind its message")
                yield key >> 3, message[at : at + size]
                at += size
            case 5:
                at += 4
            case _:
                raise ValueError("a field of an unknown type")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Read an integer, 7 bits in a byte, the low ones first; return it and where it ends."""
    value = shift = 0
    while True:
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
