"""The canonical domain `edgeformer` in ONNX: one op for each torch op of `edgeformer/ops`, derived from its signature.

Tensors of the torch op are inputs, `Tensor?` are optional inputs, numbers and strings are attributes and returns are
outputs, so the two cannot drift apart. `edgeformer/ops` states what the ops compute; `function_bodies.py` states it in
ONNX primitives.
"""

import inspect
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx.defs import OpSchema
from onnxscript.values import Opset

from edgeformer.contract.ops import DOMAIN
from edgeformer.ops import NAMES

VERSION = 1

OPS = {name: getattr(torch.ops.edgeformer, op).default for name, op in NAMES.items()}

INPUTS = {name: [each.name for each in op._schema.arguments if "Tensor" in str(each.type)] for name, op in OPS.items()}
"""Names of the inputs of each canonical op, in order: the tensor arguments of the torch op."""

_TENSOR_TYPES = [f"tensor({name})" for name in ("float", "float16", "bfloat16", "double", "int64", "bool")]
_ATTRIBUTE_TYPES = {
    "float": (OpSchema.AttrType.FLOAT, float),
    "int": (OpSchema.AttrType.INT, int),
    "bool": (OpSchema.AttrType.INT, int),
    "str": (OpSchema.AttrType.STRING, str),
}


class CanonicalInputs:
    """The inputs of a node of a canonical op, by the argument names of the torch op.

    `inputs["query"]` is an input that must be there; `inputs.sinks` is None where an optional input is absent. A name
    that the op does not have is an AttributeError or KeyError.
    """

    def __init__(self, node: ir.Node):
        self._node = node

    def __getattr__(self, name: str) -> ir.Value | None:
        names = INPUTS[self._node.op_type]
        if name not in names:
            raise AttributeError(f"{self._node.op_type} has no input {name}; its inputs are {', '.join(names)}")
        return dict(zip(names, self._node.inputs, strict=False)).get(name)

    def __getitem__(self, name: str) -> ir.Value:
        value = getattr(self, name)
        if value is None:
            raise KeyError(f"{self._node.name} has no input {name}")
        return value

    def set(self, **values: ir.Value | None) -> None:
        """Replace inputs; the node is extended by absent ones where it has fewer."""
        places = {INPUTS[self._node.op_type].index(name): value for name, value in values.items()}
        self._node.resize_inputs(max(len(self._node.inputs), *(place + 1 for place in places)))
        for place, value in places.items():
            self._node.replace_input_with(place, value)


def canonical_inputs(node: ir.Node) -> CanonicalInputs:
    """Return the inputs of a node of a canonical op by name."""
    assert node.domain == DOMAIN and node.op_type in INPUTS, f"{node.name} is no canonical op"
    return CanonicalInputs(node)


def translation_table() -> dict[Any, Callable[..., Any]]:
    """Register the schemas of our ops; return the `custom_translation_table` by which torch.onnx.export emits them."""
    return {op: _translation(name, op) for name, op in OPS.items()}


def _translation(name: str, op: Any) -> Callable[..., Any]:
    arguments, inputs = op._schema.arguments, INPUTS[name]
    converters = {
        argument.name: _ATTRIBUTE_TYPES[str(argument.type)][1] for argument in arguments if argument.name not in inputs
    }
    if not onnx.defs.has(name, domain=DOMAIN):
        onnx.defs.register_schema(_schema(name, op))
    emit = getattr(Opset(DOMAIN, VERSION), name)
    # The exporter matches arguments by the signature that it finds.
    signature = inspect.Signature([
        inspect.Parameter(
            argument.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
        )
        for argument in arguments
    ])  # fmt: skip

    def translate(*values: object, **named: object) -> Any:
        bound = signature.bind(*values, **named)
        bound.apply_defaults()
        tensors = [bound.arguments[name] for name in inputs]
        while tensors and tensors[-1] is None:  # ONNX leaves out absent trailing inputs
            tensors.pop()
        return emit(*tensors, **{name: convert(bound.arguments[name]) for name, convert in converters.items()})

    translate.__signature__ = signature  # type: ignore[attr-defined]
    return translate


def _schema(name: str, op: Any) -> OpSchema:
    formal, option = OpSchema.FormalParameter, OpSchema.FormalParameterOption
    inputs, attributes = [], []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if "Tensor" in kind:
            presence = option.Optional if kind.startswith("Optional") else option.Single
            inputs.append(formal(argument.name, f"T_{argument.name}", param_option=presence))
        else:
            attributes.append(OpSchema.Attribute(argument.name, _ATTRIBUTE_TYPES[kind][0]))
    outputs = [formal(f"output_{index}", f"T_output_{index}") for index in range(len(op._schema.returns))]
    constraints = [(each.type_str, _TENSOR_TYPES, "") for each in (*inputs, *outputs)]
    return OpSchema(
        name, DOMAIN, VERSION, inputs=inputs, outputs=outputs, attributes=attributes, type_constraints=constraints
    )
