"""What an ONNX file says of itself without its weights: tensors, ops, where the weights are, how it keeps its cache."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from edgeformer.contract import CacheForm
from edgeformer.errors import require

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

Dim = int | str | None
"""Of a tensor: a number, a symbol, or nothing."""

PAST = re.compile(r"past_key_values\.(\d+)\.(?:(decoder|encoder)\.)?(key|value)")
"""The name of a past: the layer, which cache where there are two, which half."""

ONNX_DOMAINS = ("", "ai.onnx")

# Where an op takes the tables of RoPE. onnxruntime's RotaryEmbedding has them behind the positions, ONNX's before.
_TABLES = {
    ("com.microsoft", "GroupQueryAttention"): (7, 8),
    ("com.microsoft", "RotaryEmbedding"): (2, 3),
    ("", "RotaryEmbedding"): (1, 2),
}
_OWN_TABLES = r"rotary\.\d+\.(cos|sin)|position_embedding\.weight"
# An op that reads a past tells how the graph keeps it: in a buffer or growing, in a buffer alone, or growing alone.
_FORMS: dict[tuple[str, str], CacheForm] = {
    ("com.microsoft", "GroupQueryAttention"): "any",
    ("", "TensorScatter"): "static",
    ("", "ScatterND"): "static",
    ("", "ScatterElements"): "static",
    ("", "Concat"): "dynamic",
    ("", "Attention"): "dynamic",
}
# Ops that hand a past on as it is, or in another layout or type.
_PASSING = ("Identity", "Cast", "Transpose", "Reshape", "Unsqueeze")


@dataclass(frozen=True)
class Tensor:
    """An input or output: its type as onnx names it in lower case (float, int64), and its dimensions."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class External:
    """A weight in another file. length: the bytes that are read there; needed: those that its shape and type take."""

    tensor: str
    location: str
    offset: int
    length: int
    needed: int


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """A graph in a folder.

    opsets: versions by domain. ops: (domain, name) of all nodes, those in branches and functions too. functions:
    (domain, name) of what the model defines itself. constants: types of weights and casts. tables: rows of each table
    of positions. cache_form: None where it has no past, or keeps it in a way that is not known here.
    """

    file: str
    bytes: int
    ir_version: int
    opsets: dict[str, int]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    ops: frozenset[tuple[str, str]]
    functions: frozenset[tuple[str, str]]
    constants: frozenset[str]
    externals: tuple[External, ...]
    tables: dict[str, int]
    cache_form: CacheForm | None

    @property
    def name(self) -> str:
        """The file without its folder."""
        return self.file.rpartition("/")[2]

    @property
    def data_files(self) -> tuple[str, ...]:
        """Names of the files of weights, relative to the graph."""
        return tuple(dict.fromkeys(each.location for each in self.externals))

    @property
    def pasts(self) -> dict[str, Tensor]:
        """Inputs that are a cache, by name."""
        return {name: tensor for name, tensor in self.inputs.items() if PAST.fullmatch(name)}

    @property
    def layers(self) -> int:
        """Layers that have a cache."""
        return len({found[1] for name in self.inputs if (found := PAST.fullmatch(name))})

    @property
    def past_shape(self) -> tuple[Dim, ...]:
        """Dimensions of the first past of the decoder itself, as symbols where they are no numbers; () without one."""
        own = [tensor for name, tensor in self.pasts.items() if ".encoder." not in name]
        return own[0].dims if own and len(own[0].dims) == 4 else ()

    @property
    def positions(self) -> int | None:
        """How many positions there are rows for; None without a table."""
        return min(self.tables.values(), default=None)


def read_graph(folder: Path, file: str) -> GraphFacts:
    """Read a graph. Raises ValueError where it is none, MissingDependencyError without onnx."""
    onnx = require("onnx", "check")
    path = folder / file
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as problem:  # protobuf's own type, which differs between its implementations
        raise ValueError(str(problem)) from None
    if not model.graph.node:
        raise ValueError("it has no nodes")
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = list(_nodes(model))
    return GraphFacts(
        file=file,
        bytes=path.stat().st_size,
        ir_version=model.ir_version,
        opsets={entry.domain: entry.version for entry in model.opset_import},
        inputs={each.name: _tensor(each) for each in model.graph.input if each.name not in initializers},
        outputs={each.name: _tensor(each) for each in model.graph.output},
        ops=frozenset((node.domain, node.op_type) for node in nodes),
        functions=frozenset((function.domain, function.name) for function in model.functions),
        constants=frozenset(_constants(initializers.values(), nodes)),
        externals=tuple(_externals(initializers.values())),
        tables=_tables(model, initializers),
        cache_form=_cache_form(model),
    )


def _nodes(model: "ModelProto") -> Iterator["NodeProto"]:
    for holder in (model.graph, *model.functions):
        yield from _nodes_in(holder)


def _nodes_in(holder: "GraphProto | FunctionProto") -> Iterator["NodeProto"]:
    for node in holder.node:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes_in(graph)


def _tensor(value: "ValueInfoProto") -> Tensor:
    kind = value.type.tensor_type
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim)
    return Tensor(value.name, _dtype_name(kind.elem_type), dims)


def _dtype_name(number: int) -> str:
    proto = require("onnx", "check").TensorProto.DataType
    return proto.Name(number).lower() if number in proto.values() else f"type {number}"


def _constants(initializers: Iterable["TensorProto"], nodes: Iterable["NodeProto"]) -> Iterator[str]:
    for tensor in initializers:
        yield _dtype_name(tensor.data_type)
    for node in nodes:
        if node.op_type == "Cast":
            yield from (_dtype_name(attribute.i) for attribute in node.attribute if attribute.name == "to")


def _externals(initializers: Iterable["TensorProto"]) -> Iterator[External]:
    onnx = require("onnx", "check")
    for tensor in initializers:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        said = {entry.key: entry.value for entry in tensor.external_data}
        needed = _nbytes(tensor)
        offset, length = (int(said.get(key) or default) for key, default in (("offset", 0), ("length", needed)))
        yield External(tensor.name, said.get("location", ""), offset, length, needed)


def _nbytes(tensor: "TensorProto") -> int:
    helper = require("onnx", "check").helper
    bits = {"uint4": 4, "int4": 4, "float4e2m1": 4, "uint2": 2, "int2": 2}.get(_dtype_name(tensor.data_type))
    count = prod(tensor.dims)
    if bits is not None:
        return -(-count * bits // 8)
    return count * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _tables(model: "ModelProto", initializers: dict[str, "TensorProto"]) -> dict[str, int]:
    """Rows of the tables that ops take for RoPE; where ops do not tell, of those that edgeformer has names for."""
    names = {name for name in initializers if re.fullmatch(_OWN_TABLES, name)}
    for node in _nodes_in(model.graph):
        places = _TABLES.get((node.domain.removeprefix("ai.onnx"), node.op_type), ())
        names.update(node.input[place] for place in places if place < len(node.input))
    return {name: initializers[name].dims[0] for name in names & initializers.keys() if initializers[name].dims}


def _cache_form(model: "ModelProto") -> CacheForm | None:
    """How the graph keeps the decoder's own past, by the op that reads it, in a function of the model or not."""
    pasts = {each.name for each in model.graph.input if PAST.fullmatch(each.name) and ".encoder." not in each.name}
    functions = {(function.domain, function.name): function for function in model.functions}
    return _form_of(pasts, model.graph.node, functions)


def _form_of(
    names: set[str], nodes: Iterable["NodeProto"], functions: dict[tuple[str, str], "FunctionProto"]
) -> CacheForm | None:
    followed = set(names)
    for node in nodes:
        read = {place for place, name in enumerate(node.input) if name in followed}
        if not read:
            continue
        key = (node.domain.removeprefix("ai.onnx"), node.op_type)
        if key in functions:
            function = functions[key]
            form = _form_of({function.input[place] for place in read}, function.node, functions)
        else:
            form = _FORMS.get(key)
        if form is not None:
            return form
        if node.op_type in _PASSING:
            followed.update(node.output)
    return None
