"""Facts about an ONNX graph, read without its weights: tensors, ops, places of the weights, form of the cache."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from edgeformer.check.tensor_facts import PAST, Dim, TensorFacts, find_cache, is_per_token
from edgeformer.contract.ops import TABLES, find_op
from edgeformer.contract.tensors import CacheForm, CacheGeometry
from edgeformer.errors import require

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

ONNX_DOMAINS = ("", "ai.onnx")

_OWN_TABLES = r"rotary\.\d+\.(cos|sin)|position_embedding\.weight"
# Ops that return a past unchanged, or in another layout or data type.
_PASSING = ("Identity", "Cast", "Transpose", "Reshape", "Unsqueeze")


@dataclass(frozen=True)
class ExternalTensor:
    """A weight in another file.

    Attributes:
        tensor: name of the weight.
        location: file, relative to the graph.
        offset: first byte.
        length: bytes according to the graph.
        needed: bytes that its shape and data type imply.
    """

    tensor: str
    location: str
    offset: int
    length: int
    needed: int


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """Facts about a graph in a folder.

    Attributes:
        file: path in the folder.
        bytes: size of the file.
        ir_version: ONNX IR version.
        opsets: opset versions by domain.
        inputs, outputs: tensors by name, in order.
        ops: (domain, name) of all nodes, including those in subgraphs and functions.
        functions: (domain, name) of functions that the model defines.
        constants: data types of weights, and of the results of Cast.
        externals: weights in other files.
        tables: number of rows of each table of positions.
        cache_form: None without keys and values, or if the form is not known.
    """

    file: str
    bytes: int
    ir_version: int
    opsets: dict[str, int]
    inputs: dict[str, TensorFacts]
    outputs: dict[str, TensorFacts]
    ops: frozenset[tuple[str, str]]
    functions: frozenset[tuple[str, str]]
    constants: frozenset[str]
    externals: tuple[ExternalTensor, ...]
    tables: dict[str, int]
    cache_form: CacheForm | None

    @property
    def name(self) -> str:
        """Return the file name without the folder."""
        return self.file.rpartition("/")[2]

    @property
    def data_files(self) -> tuple[str, ...]:
        """Return the names of the files of weights, relative to the graph."""
        return tuple(dict.fromkeys(each.location for each in self.externals))

    @property
    def pasts(self) -> dict[str, TensorFacts]:
        """Return the inputs that are a past, by name."""
        return {name: tensor for name, tensor in self.inputs.items() if PAST.fullmatch(name)}

    @property
    def cache(self) -> CacheGeometry:
        """Return what the layers keep, of an encoder-decoder those of the decoder; sizes that are no numbers are 0."""
        return find_cache(self.inputs, "decoder." if any(".decoder." in name for name in self.pasts) else "")

    @property
    def past_shape(self) -> tuple[Dim, ...]:
        """Return the dimensions of the first keys of the decoder's own cache; () without any."""
        own = [tensor for name, tensor in self.pasts.items() if name.endswith(".key") and ".encoder." not in name]
        return own[0].dims if own and len(own[0].dims) == 4 else ()

    @property
    def positions(self) -> int | None:
        """Return the number of positions that have a row in all tables; None without a table."""
        return min(self.tables.values(), default=None)


def read_graph(folder: Path, file: str) -> GraphFacts:
    """Return the facts about a graph. Raises ValueError for another file, MissingDependencyError without onnx."""
    onnx = require("onnx", "check")
    path = folder / file
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as problem:  # protobuf's exception, whose type differs between its implementations
        raise ValueError(str(problem)) from None
    if not model.graph.node:
        raise ValueError("it has no nodes")
    try:
        return _facts(file, path.stat().st_size, model)
    except (LookupError, OverflowError, TypeError) as problem:  # such as names that are not UTF-8, which are bytes
        raise ValueError(f"a name or a number in it is wrong ({type(problem).__name__}: {problem})") from None


def _facts(file: str, size: int, model: "ModelProto") -> GraphFacts:
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = list(_nodes(model))
    return GraphFacts(
        file=file,
        bytes=size,
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


def _tensor(value: "ValueInfoProto") -> TensorFacts:
    kind = value.type.tensor_type
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim)
    return TensorFacts(value.name, _dtype_name(kind.elem_type), dims)


def _dtype_name(number: int) -> str:
    proto = require("onnx", "check").TensorProto.DataType
    return proto.Name(number).lower() if number in proto.values() else f"type {number}"


def _constants(initializers: Iterable["TensorProto"], nodes: Iterable["NodeProto"]) -> Iterator[str]:
    for tensor in initializers:
        yield _dtype_name(tensor.data_type)
    for node in nodes:
        if node.op_type == "Cast":
            yield from (_dtype_name(attribute.i) for attribute in node.attribute if attribute.name == "to")


def _externals(initializers: Iterable["TensorProto"]) -> Iterator[ExternalTensor]:
    onnx = require("onnx", "check")
    for tensor in initializers:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        data = {entry.key: entry.value for entry in tensor.external_data}
        needed = _nbytes(tensor)
        offset, length = (int(data.get(key) or default) for key, default in (("offset", 0), ("length", needed)))
        yield ExternalTensor(tensor.name, data.get("location", ""), offset, length, needed)


def _nbytes(tensor: "TensorProto") -> int:
    helper = require("onnx", "check").helper
    bits = {"uint4": 4, "int4": 4, "float4e2m1": 4, "uint2": 2, "int2": 2}.get(_dtype_name(tensor.data_type))
    count = prod(tensor.dims)
    if bits is not None:
        return -(-count * bits // 8)
    return count * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _tables(model: "ModelProto", initializers: dict[str, "TensorProto"]) -> dict[str, int]:
    """Return the number of rows of tables of positions: inputs of rotary ops, and tables with edgeformer's names."""
    names = {name for name in initializers if re.fullmatch(_OWN_TABLES, name)}
    for node in _nodes_in(model.graph):
        op = find_op(node.domain, node.op_type)
        inputs = {} if op is None else op.named(node.input)
        names.update(inputs[table] for table in TABLES if table in inputs)
    return {name: initializers[name].dims[0] for name in names & initializers.keys() if initializers[name].dims}


def _cache_form(model: "ModelProto") -> CacheForm | None:
    """Return the form of the decoder's own keys and values, by the op that reads the past, also inside functions."""
    keys = {each.name for each in model.graph.input if PAST.fullmatch(each.name) and ".encoder." not in each.name}
    functions = {(function.domain, function.name): function for function in model.functions}
    return _form_of({name for name in keys if is_per_token(name)}, model.graph.node, functions)


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
            op = find_op(*key)
            form = None if op is None else op.cache
        if form is not None:
            return form
        if node.op_type in _PASSING:
            followed.update(node.output)
    return None
