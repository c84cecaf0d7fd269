"""The canonical domain `edgeformer` in ONNX: one op for each torch op, derived from its signature.

Tensors of the torch op are inputs, `Tensor?` are optional inputs, numbers are attributes, returns are outputs; so the
two cannot drift apart. What the ops compute is stated in `edgeformer/ops` and, in ONNX primitives, in `bodies.py`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import onnx
import torch
from onnx.defs import OpSchema
from onnxscript.values import Opset

import edgeformer.ops  # noqa: F401 - registers torch.ops.edgeformer

DOMAIN = "edgeformer"
VERSION = 1

OPS = {
    "RMSNorm": torch.ops.edgeformer.rms_norm.default,
    "SkipRMSNorm": torch.ops.edgeformer.skip_rms_norm.default,
    "SkipLayerNorm": torch.ops.edgeformer.skip_layer_norm.default,
    "RotaryEmbedding": torch.ops.edgeformer.rotary_embedding.default,
    "GroupQueryAttention": torch.ops.edgeformer.group_query_attention.default,
    "CrossAttention": torch.ops.edgeformer.cross_attention.default,
    "TokenPositions": torch.ops.edgeformer.token_positions.default,
    "KeyPositions": torch.ops.edgeformer.key_positions.default,
}

_TENSOR_TYPES = [f"tensor({name})" for name in ("float", "float16", "bfloat16", "double", "int64")]
_ATTRIBUTE_TYPES = {
    "float": (OpSchema.AttrType.FLOAT, float),
    "int": (OpSchema.AttrType.INT, int),
    "bool": (OpSchema.AttrType.INT, int),
}


def translation_table() -> dict[Any, Callable[..., Any]]:
    """What `torch.onnx.export(custom_translation_table=…)` needs to emit our ops; registers their schemas once."""
    return {op: _translation(name, op) for name, op in OPS.items()}


def _translation(name: str, op: Any) -> Callable[..., Any]:
    arguments = op._schema.arguments
    inputs = [argument.name for argument in arguments if "Tensor" in str(argument.type)]
    converters = {
        argument.name: _ATTRIBUTE_TYPES[str(argument.type)][1] for argument in arguments if argument.name not in inputs
    }
    if not onnx.defs.has(name, domain=DOMAIN):
        onnx.defs.register_schema(_schema(name, op))
    emit = getattr(Opset(DOMAIN, VERSION), name)

    def translate(*values: Any, **named: Any) -> Any:
        defaults = {each.name: each.default_value for each in arguments if each.has_default_value()}
        given = defaults | dict(zip([each.name for each in arguments], values, strict=False)) | named
        tensors = [given[name] for name in inputs]
        while tensors and tensors[-1] is None:  # absent trailing inputs are left out in ONNX
            tensors.pop()
        return emit(*tensors, **{name: convert(given[name]) for name, convert in converters.items()})

    # The exporter matches arguments by the signature that it finds.
    parameters = [
        inspect.Parameter(
            argument.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
        )
        for argument in arguments
    ]
    translate.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return translate


def _schema(name: str, op: Any) -> OpSchema:
    inputs, attributes, constraints = [], [], []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if "Tensor" not in kind:
            attributes.append(OpSchema.Attribute(argument.name, _ATTRIBUTE_TYPES[kind][0]))
            continue
        option = OpSchema.FormalParameterOption
        variable = f"T_{argument.name}"
        presence = option.Optional if kind.startswith("Optional") else option.Single
        inputs.append(OpSchema.FormalParameter(argument.name, variable, param_option=presence))
        constraints.append((variable, _TENSOR_TYPES, ""))
    outputs = []
    for index in range(len(op._schema.returns)):
        outputs.append(OpSchema.FormalParameter(f"output_{index}", f"T_output_{index}"))
        constraints.append((f"T_output_{index}", _TENSOR_TYPES, ""))
    return OpSchema(
        name, DOMAIN, VERSION, inputs=inputs, outputs=outputs, attributes=attributes, type_constraints=constraints
    )
