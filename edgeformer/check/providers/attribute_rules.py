"""Requirements of kernels beyond types: attributes of a node, and which inputs it has and of which sizes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from edgeformer.check.finding import Severity
from edgeformer.check.providers.typed_nodes import TypedNode, Value
from edgeformer.contract.ops import find_op


@dataclass(frozen=True)
class Broken:
    """A rule that a node breaks: a clause that says how, and what has the rule: a file of onnxruntime or of ours."""

    problem: str
    source: str
    severity: Severity = "error"


Rules = Mapping[tuple[str, str], Callable[[TypedNode], Iterator[Broken]]]
"""The rules of a provider, by domain and op."""


def input_of(node: TypedNode, name: str) -> Value | None:
    """Return an input by its name; None where it is left out."""
    op = find_op(node.domain, node.op)
    assert op is not None
    return node.input(op.place(name))


def size_of(node: TypedNode, name: str, dim: int) -> int:
    """Return a dimension of an input; 0 if the file does not tell."""
    value = input_of(node, name)
    if value is None or value.dims is None or not -len(value.dims) <= dim < len(value.dims):
        return 0
    return value.dims[dim] or 0
