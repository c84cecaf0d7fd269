"""The ops of ONNX and onnxruntime as graphs of one node, for any types that their schemas allow."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper

Kinds = Mapping[str, str]
"""Element types, such as float16, by type variable."""

TRIED = (
    "float", "float16", "bfloat16", "double", "int64", "int32", "uint32", "int8", "uint8", "bool", "int4", "uint4",
)  # fmt: skip
"""The element types that are tried of those that a schema allows: graphs of transformers have no others."""

OLDEST, LATEST = 11, 26
"""The op sets of ONNX whose ops are tried. Exports have 11 and later; onnxruntime 1.31 reads 26 at most."""

DOMAINS = ("", "com.microsoft")

CONTROL = re.compile("^(Constant|If|Loop|Scan|SequenceMap|Sampling)$|Search$|Tokenizer|Snpe")
"""Ops that are left out: their attributes are graphs or files. Exports have `Loop` of them, which has no kernel."""

VALUES: Mapping[str, Any] = {"INT": 1, "INTS": [1], "FLOAT": 1.0, "FLOATS": [1.0], "STRING": ""}
"""A value for a needed attribute of each type; kernels look at them after their provider has taken a node."""

OWN: Mapping[str, Mapping[str, Any]] = {
    "Cast": {"to": lambda kinds: number(kinds["T2"])},
    "ConstantOfShape": {"value": lambda kinds: helper.make_tensor("v", number(kinds["T2"]), [1], [0])},
    "Einsum": {"equation": "ij,jk->ik"},
    "EyeLike": {"dtype": lambda kinds: number(kinds["T2"])},
    "RandomNormalLike": {"dtype": lambda kinds: number(kinds["T2"])},
    "RandomUniformLike": {"dtype": lambda kinds: number(kinds["T2"])},
    "RandomNormal": {"dtype": lambda kinds: number(kinds["T"])},
    "RandomUniform": {"dtype": lambda kinds: number(kinds["T"])},
    "BitCast": {"to": lambda kinds: number(kinds["T2"])},
    "BitShift": {"direction": "LEFT"},
    "MatMulNBits": {"K": 32, "N": 32, "block_size": 32, "bits": 4},
}
"""Values of attributes that decide types, or that schemas themselves look at."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A version of an op.

    Attributes:
        inputs, outputs: (type or type variable, whether a node may lack it).
        types: the element types to try, by type variable.
        attributes: values of those that a node must have; a function makes them from the types.
    """

    domain: str
    name: str
    version: int
    inputs: tuple[tuple[str, bool], ...]
    outputs: tuple[tuple[str, bool], ...]
    types: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Return domain and name as tables of kernels have them."""
        return f"{self.domain}::{self.name}" if self.domain else self.name

    @property
    def needed(self) -> list[str]:
        """Return the type variables that every node has."""
        return sorted({kind for kind, lacks in (*self.inputs, *self.outputs) if not lacks and kind in self.types})

    @property
    def optional(self) -> list[str]:
        """Return the type variables of inputs that nodes may lack, and of nothing else."""
        return sorted({kind for kind, _ in self.inputs if kind in self.types} - set(self.needed))

    def model(self, kinds: Kinds) -> bytes:
        """Return a graph of one node with these types, and with those optional inputs whose variables are named."""
        ends = [
            [(f"{letter}{place}", self._kind(kind, lacks, kinds)) for place, (kind, lacks) in enumerate(formal)]
            for letter, formal in (("i", self.inputs), ("o", self.outputs))
        ]
        names = [[name if kind else "" for name, kind in end] for end in ends]
        attributes = {name: value(kinds) if callable(value) else value for name, value in self.attributes.items()}
        node = helper.make_node(self.name, *map(_shortened, names), domain=self.domain, name="node", **attributes)
        values = [
            [helper.make_tensor_value_info(name, number(kind), None) for name, kind in end if kind] for end in ends
        ]
        opset = LATEST if self.domain else max(self.version, OLDEST)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAINS[1], 1)]
        graph = helper.make_graph([node], "graph", *values)
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())

    def _kind(self, kind: str, lacks: bool, kinds: Kinds) -> str | None:
        """Return the element type of an input or output; None for one that the node lacks."""
        if lacks and (kind not in self.types or kind in self.needed):
            return None
        return kinds.get(kind) if kind in self.types else plain(kind)


def signatures(contrib: Any) -> Iterator[Signature]:
    """Yield the ops. contrib: onnxruntime's list of schemas, `get_all_operator_schema()`."""
    found = {}
    for schema in (*onnx.defs.get_all_schemas_with_history(), *contrib):
        if schema.domain in DOMAINS and not schema.deprecated and schema.since_version <= LATEST:
            found.setdefault((schema.domain, schema.name, schema.since_version), schema)
    for (domain, name, version), schema in sorted(found.items()):
        later = [other for d, n, other in found if (d, n) == (domain, name) and version < other <= OLDEST]
        if (domain or not later) and not CONTROL.search(name):
            yield _signature(schema)


def _signature(schema: Any) -> Signature:
    types = {
        each.type_param_str: tuple(kind for kind in TRIED if f"tensor({kind})" in each.allowed_type_strs)
        for each in schema.type_constraints
    }
    formal = [
        tuple((getattr(each, "type_str", None) or each.typeStr, "Optional" in str(each.option)) for each in end)
        for end in (schema.inputs, schema.outputs)
    ]
    required = {name: str(each.type).rpartition(".")[2] for name, each in schema.attributes.items() if each.required}
    return Signature(
        domain=schema.domain,
        name=schema.name,
        version=schema.since_version,
        inputs=formal[0],
        outputs=formal[1],
        types=types,
        attributes={name: VALUES[kind] for name, kind in required.items() if kind in VALUES} | OWN.get(schema.name, {}),
    )


def _shortened(names: Sequence[str]) -> list[str]:
    """Return names without those at the end that are empty."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def number(kind: str) -> int:
    """Return ONNX's number of an element type."""
    return int(TensorProto.DataType.Value(kind.upper()))


def plain(kind: str) -> str:
    """Return float16 for tensor(float16)."""
    return kind.removeprefix("tensor(").removesuffix(")")
