"""The nodes of a graph with the types that reach them, also of those in functions and subgraphs.

ONNX's own type inference stops at ops of other domains. Here the types of outputs follow from the schemas of both ONNX
and onnxruntime: an output has the type of an input with the same type variable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from edgeformer.check.providers.kernel_table import KernelTable, Schema
from edgeformer.errors import require

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

Dims = tuple[int | None, ...]
"""Dimensions of a tensor; None where the file has no number."""

FLOATS = frozenset({"float", "double", "float16", "bfloat16"})

SHAPES = frozenset({"Shape", "Size"})
"""Ops that return the shape of what they read."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A tensor that a node reads or returns.

    Attributes:
        name: a name that no other tensor has; tensors in functions have that of the call in front.
        kind: its element type, such as float16; None if it is not known.
        dims: its dimensions; None if they are not known.
        constant: whether it is a weight, or is computed from weights only, which onnxruntime does once.
        given: whether it is an input of the graph.
        activation: whether it depends on numbers that are no weights: everything in a layer does.
    """

    name: str
    kind: str | None = None
    dims: Dims | None = None
    constant: bool = False
    given: bool = False
    activation: bool = False

    @property
    def small(self) -> bool:
        """Return whether it is a constant of 100 numbers at most, which onnxruntime copies to where it is wanted."""
        return self.constant and self.dims is not None and prod(each or 0 for each in self.dims) <= 100


@dataclass(frozen=True, kw_only=True)
class TypedNode:
    """A node that onnxruntime has to run.

    Attributes:
        version: since which op set its op is as it is.
        inputs, outputs: in their order; None for one that is left out.
        attributes: by name; a text is bytes.
        types: element types by type variable, and by name of an input or output.
    """

    domain: str
    op: str
    name: str
    version: int
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    types: Mapping[str, str]

    @property
    def title(self) -> str:
        """Return its op and its name, for a message."""
        op = f"{self.domain}::{self.op}" if self.domain else self.op
        return f"{op} {self.name}" if self.name else op

    @property
    def activation(self) -> bool:
        """Return whether it reads numbers of a layer, and not lengths and positions alone."""
        return any(each is not None and each.activation for each in self.inputs)

    def input(self, place: int) -> Value | None:
        """Return an input, or None if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None


@dataclass(frozen=True)
class _Scope:
    """Where a node is: tensors by the name that it has there, op sets, attributes of the call, and a name in front."""

    values: dict[str, Value]
    opsets: Mapping[str, int]
    attributes: Mapping[str, Any]
    prefix: str


def typed_nodes(model: "ModelProto", table: KernelTable) -> list[TypedNode]:
    """Return the nodes that onnxruntime runs, in the order of the file; those that it computes once are left out."""
    return list(_Walk(model, table).nodes())


class _Walk:
    def __init__(self, model: "ModelProto", table: KernelTable):
        self._onnx: Any = require("onnx", "check")
        self._model, self._table = model, table
        self._functions = {(each.domain, each.name, each.overload): each for each in model.functions}
        self._dims = {each.name: _dims(each) for each in (*model.graph.value_info, *model.graph.output)}

    def nodes(self) -> Iterator[TypedNode]:
        opsets = {entry.domain.removeprefix("ai.onnx"): entry.version for entry in self._model.opset_import}
        yield from self._graph(self._model.graph, _Scope({}, opsets, {}, ""))

    def _graph(self, graph: "GraphProto", outer: _Scope) -> Iterator[TypedNode]:
        scope = replace(outer, values=dict(outer.values))
        for each in graph.input:
            kind = self._kind(each.type.tensor_type.elem_type)
            scope.values[each.name] = Value(
                name=scope.prefix + each.name, kind=kind, dims=_dims(each), given=True, activation=kind in FLOATS
            )
        for tensor in graph.initializer:
            self._constant(scope, tensor.name, self._kind(tensor.data_type), tuple(tensor.dims))
        yield from self._list(graph.node, scope)

    def _list(self, nodes: Iterable["NodeProto"], scope: _Scope) -> Iterator[TypedNode]:
        for node in nodes:
            yield from self._node(node, scope)

    def _node(self, node: "NodeProto", scope: _Scope) -> Iterator[TypedNode]:
        attributes = dict(self._attributes(node.attribute, scope))
        if node.op_type == "Constant" and not node.domain:
            self._constant(scope, node.output[0], *self._constant_facts(attributes))
            return
        function = self._functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            yield from self._call(function, node, attributes, scope)
            return
        domain = node.domain.removeprefix("ai.onnx")
        schema = self._table.schema(domain, node.op_type, scope.opsets.get(domain, 1))
        # A name that nothing has is an input that the caller of a function leaves out.
        inputs = tuple(scope.values.get(name) for name in node.input)
        typed = self._typed(node, domain, schema, inputs, attributes, scope)
        graphs = [each.g for each in node.attribute if each.HasField("g")]
        if inputs and not graphs and all(each is None or each.constant for each in inputs):
            for name, made in zip(node.output, typed.outputs, strict=True):
                if made is not None:
                    scope.values[name] = replace(made, constant=True)
            return
        if schema is not None and schema.body and not self._table.knows(domain, node.op_type):
            body = self._body(node, typed, scope)
            if body is not None:
                yield from self._call(body, node, attributes, scope)
                return
        for graph in graphs:
            yield from self._graph(graph, replace(scope, prefix=f"{scope.prefix}{node.name}/"))
        scope.values.update(
            (name, made) for name, made in zip(node.output, typed.outputs, strict=True) if made is not None
        )
        yield typed

    def _typed(
        self,
        node: "NodeProto",
        domain: str,
        schema: Schema | None,
        inputs: tuple[Value | None, ...],
        attributes: Mapping[str, Any],
        scope: _Scope,
    ) -> TypedNode:
        given = _kinds_of(inputs)
        types = schema.variables(given) if schema is not None else {}
        kinds = tuple(self._made(node, place, schema, types, given, attributes) for place in range(len(node.output)))
        # A shape tells nothing of the numbers that have it.
        activation = node.op_type not in SHAPES and any(each is not None and each.activation for each in inputs)
        outputs = tuple(
            Value(
                name=scope.prefix + name,
                kind=kind,
                dims=None if scope.prefix else self._dims.get(name),
                activation=activation or kind in FLOATS,
            )
            if name
            else None
            for name, kind in zip(node.output, kinds, strict=True)
        )
        return TypedNode(
            domain=domain,
            op=node.op_type,
            name=scope.prefix + node.name,
            version=schema.version if schema is not None else scope.opsets.get(domain, 1),
            inputs=inputs,
            outputs=outputs,
            attributes=attributes,
            types=schema.variables(given, _kinds_of(outputs)) if schema is not None else {},
        )

    def _made(
        self,
        node: "NodeProto",
        place: int,
        schema: Schema | None,
        types: Mapping[str, str],
        given: tuple[str | None, ...],
        attributes: Mapping[str, Any],
    ) -> str | None:
        """The type of an output."""
        branches = [each.g for each in node.attribute if each.HasField("g")]
        if branches:  # the first output of a Loop's body is its condition
            declared = branches[0].output[place + (node.op_type == "Loop")]
            return self._kind(declared.type.tensor_type.elem_type)
        special = _MADE.get(node.op_type) if not node.domain else None
        if special is not None:
            found = special(given, attributes)
            return self._kind(found) if isinstance(found, int) else found
        if schema is None or not schema.outputs:
            return None
        variable = schema.outputs[min(place, len(schema.outputs) - 1)][1]
        return types.get(variable) or (variable if variable in _KINDS else None)

    def _call(
        self, function: "FunctionProto", node: "NodeProto", attributes: Mapping[str, Any], scope: _Scope
    ) -> Iterator[TypedNode]:
        prefix = f"{scope.prefix}{node.name or node.output[0]}/"
        # Inputs that a caller leaves out, at the end too, are absent in the body.
        passed = zip(function.input, node.input, strict=False)
        given = {formal: scope.values[name] for formal, name in passed if name in scope.values}
        defaults = dict(self._attributes(function.attribute_proto, scope))
        opsets = {entry.domain.removeprefix("ai.onnx"): entry.version for entry in function.opset_import}
        inner = _Scope(given, {**scope.opsets, **opsets}, {**defaults, **attributes}, prefix)
        yield from self._list(function.node, inner)
        for formal, name in zip(function.output, node.output, strict=False):
            if name and formal in inner.values:
                scope.values[name] = inner.values[formal]

    def _body(self, node: "NodeProto", typed: TypedNode, scope: _Scope) -> "FunctionProto | None":
        """The function that ONNX defines an op as, for these types."""
        schema = self._onnx.defs.get_schema(node.op_type, scope.opsets.get(typed.domain, 1), typed.domain)
        if schema.has_function:
            return schema.function_body
        kinds = [each.kind for each in typed.inputs if each is not None and each.kind is not None]
        if len(kinds) < len(typed.inputs):
            return None
        protos = [self._onnx.helper.make_tensor_type_proto(self._number(kind), None) for kind in kinds]
        text = schema.get_context_dependent_function(
            node.SerializeToString(), [proto.SerializeToString() for proto in protos]
        )
        return self._onnx.FunctionProto.FromString(text)

    def _attributes(self, attributes: Iterable["AttributeProto"], scope: _Scope) -> Iterator[tuple[str, Any]]:
        for each in attributes:
            if not each.ref_attr_name:
                yield each.name, self._onnx.helper.get_attribute_value(each)
            elif each.ref_attr_name in scope.attributes:
                yield each.name, scope.attributes[each.ref_attr_name]

    def _constant(self, scope: _Scope, name: str, kind: str | None, dims: Dims | None) -> None:
        scope.values[name] = Value(name=scope.prefix + name, kind=kind, dims=dims, constant=True)

    def _constant_facts(self, attributes: Mapping[str, Any]) -> tuple[str | None, Dims | None]:
        tensor = attributes.get("value")
        if tensor is not None:
            return self._kind(tensor.data_type), tuple(tensor.dims)
        name, value = next(iter(attributes.items()))
        kind = {"value_f": "float", "value_i": "int64", "value_s": "string"}.get(name[:7])
        return kind, (len(value),) if name.endswith("s") and name != "value_s" else ()

    def _kind(self, number: int) -> str | None:
        names = self._onnx.TensorProto.DataType
        return names.Name(number).lower() if number else None

    def _number(self, kind: str) -> int:
        number: int = self._onnx.TensorProto.DataType.Value(kind.upper())
        return number


def _dims(value: "ValueInfoProto") -> Dims | None:
    """The dimensions that a file declares for a tensor."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value or None for dim in value.type.tensor_type.shape.dim)


def _kinds_of(values: Iterable[Value | None]) -> tuple[str | None, ...]:
    return tuple(each.kind if each is not None else None for each in values)


_KINDS = FLOATS | {
    "bool", "string", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
}  # fmt: skip

_MADE: dict[str, Callable[[tuple[str | None, ...], Mapping[str, Any]], str | int | None]] = {
    "Cast": lambda given, attributes: attributes["to"],
    "CastLike": lambda given, attributes: given[1],
    "ConstantOfShape": lambda given, attributes: attributes["value"].data_type if "value" in attributes else "float",
    "EyeLike": lambda given, attributes: attributes.get("dtype", given[0]),
    "RandomNormalLike": lambda given, attributes: attributes.get("dtype", given[0]),
    "RandomUniformLike": lambda given, attributes: attributes.get("dtype", given[0]),
    "DequantizeLinear": lambda given, attributes: attributes.get("output_dtype") or given[1],
    "QuantizeLinear": lambda given, attributes: (
        given[2] if len(given) > 2 else attributes.get("output_dtype") or "uint8"
    ),
}
"""Types of outputs that no type variable tells, by op: a name, or ONNX's number."""
