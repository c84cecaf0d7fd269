"""Count the calls of functions of domain `edgeformer` in a graph, without the package onnx.

Only nodes and functions are read; weights are skipped.
"""

import mmap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeformer.contract.ops import CHEAP_OPS, DOMAIN, UNPACK_BITS
from edgeformer.contract.protobuf import (
    ATTRIBUTE_GRAPH,
    ATTRIBUTE_GRAPHS,
    FUNCTION_DOMAIN,
    FUNCTION_NAME,
    FUNCTION_NODE,
    FUNCTION_OVERLOAD,
    GRAPH_NODE,
    MODEL_FUNCTIONS,
    MODEL_GRAPH,
    NODE_ATTRIBUTE,
    NODE_DOMAIN,
    NODE_OP_TYPE,
    NODE_OVERLOAD,
    read_fields,
)
from edgeformer.errors import BundleError

Function = tuple[str, str]
"""Name and overload of a function."""

WITH_GRAPHS = (b"If", b"Loop", b"Scan")
"""Ops that have graphs in their attributes."""


_DOMAIN, _CHEAP = DOMAIN.encode(), frozenset(name.encode() for name in CHEAP_OPS)


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

        Those that are computed when a graph is loaded are neither.
        Calls in a body count where the body runs: not in that of a function whose kernel runs. Raises BundleError for
        functions that call themselves, which onnxruntime refuses.
        """
        kernels: Counter[str] = Counter()
        bodies: Counter[str] = Counter()
        calls = self.graph
        for _ in range(len(self.bodies) + 1):  # functions within functions are no deeper than there are functions
            inner: Counter[Function] = Counter()
            for function, count in calls.items():
                if function[0] in UNPACK_BITS.values():
                    continue
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
    for field, content in read_fields(model):
        if field == MODEL_GRAPH:
            graph.update(_called(content, GRAPH_NODE))
            only_light = all(_is_light(node) for each, node in read_fields(content) if each == GRAPH_NODE)
        elif field == MODEL_FUNCTIONS:
            texts = dict(read_fields(content))
            if bytes(texts.get(FUNCTION_DOMAIN, b"")) == _DOMAIN:
                function = _text(texts, FUNCTION_NAME), _text(texts, FUNCTION_OVERLOAD)
                bodies[function] = Counter(_called(content, FUNCTION_NODE))
    return FunctionCalls(graph, bodies, only_light)


def _is_light(node: memoryview) -> bool:
    texts = dict(read_fields(node))
    return bytes(texts.get(NODE_DOMAIN, b"")) == _DOMAIN or bytes(texts.get(NODE_OP_TYPE, b"")) in _CHEAP


def _called(holder: memoryview, node_field: int) -> Iterator[Function]:
    """Yield the functions that the nodes of a graph or function call, those in branches included."""
    for field, node in read_fields(holder):
        if field != node_field:
            continue
        texts = dict(read_fields(node))
        if bytes(texts.get(NODE_DOMAIN, b"")) == _DOMAIN:
            yield _text(texts, NODE_OP_TYPE), _text(texts, NODE_OVERLOAD)
        elif bytes(texts.get(NODE_OP_TYPE, b"")) in WITH_GRAPHS:
            for each, attribute in read_fields(node):
                if each == NODE_ATTRIBUTE:
                    yield from _called_in_attribute(attribute)


def _called_in_attribute(attribute: memoryview) -> Iterator[Function]:
    for field, graph in read_fields(attribute):
        if field in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            yield from _called(graph, GRAPH_NODE)


def _text(texts: Mapping[int, memoryview], field: int) -> str:
    return bytes(texts.get(field, b"")).decode()
