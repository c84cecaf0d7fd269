"""Infer the shapes of a graph's values, as far as they are declared or follow from their inputs."""

from collections.abc import Callable, Sequence

import onnx
from onnx import NodeProto, TensorProto, TypeProto

from graph_viewer.nodes import ONNX_DOMAINS
from graph_viewer.tensors import constant_of, dims_of

Dims = Sequence[int | str]

MOST_ELEMENTS = 64
"""Largest number of elements of a constant whose values may determine a shape."""


def shapes_of(model: onnx.ModelProto) -> dict[str, Dims]:
    """Return dimensions by value, `?` for unknown ones; values of unknown rank are left out."""
    if model.functions:
        model = onnx.shape_inference.infer_shapes(model)
    graph = model.graph
    types = {value.name: value.type for value in (*graph.input, *graph.output, *graph.value_info)}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {node.output[0]: tensor for node in graph.node if (tensor := constant_of(node)) is not None}
    types |= {name: _type(tensor.data_type, tensor.dims) for name, tensor in constants.items()}
    values = {name: tensor for name, tensor in constants.items() if _tells(tensor)}
    versions = {opset.domain: opset.version for opset in model.opset_import}
    for node in graph.node:
        if any(name and name not in types for name in node.output):
            types = _outputs(node, types, values, versions, model) | types
    found = {name: dims_of(value) for name, value in types.items()}
    return {name: dims for name, dims in found.items() if dims is not None}


def _tells(tensor: TensorProto) -> bool:
    """Return whether a constant may be a shape, an axis or similar."""
    inside = tensor.data_location != TensorProto.EXTERNAL
    return inside and len(tensor.dims) < 2 and sum(tensor.dims) <= MOST_ELEMENTS


def _outputs(
    node: NodeProto,
    types: dict[str, TypeProto],
    values: dict[str, TensorProto],
    versions: dict[str, int],
    model: onnx.ModelProto,
) -> dict[str, TypeProto]:
    """Return the types of a node's outputs by one of RULES, or else by ONNX's inference."""
    inputs = {name: types[name] for name in node.input if name in types}
    if node.op_type in RULES:
        dims = [dims_of(types[name]) if name in types else None for name in node.input]
        first = types.get(node.input[0])
        if first is None or dims[0] is None:
            return {}
        inferred = RULES[node.op_type](node, dims)
        return {
            node.output[index]: _type(first.tensor_type.elem_type, shape)
            for index, shape in inferred.items()
            if index < len(node.output) and node.output[index]
        }
    domain = "" if node.domain in ONNX_DOMAINS else node.domain
    if domain not in versions or any(name and name not in inputs for name in node.input):
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
        data = {name: values[name] for name in node.input if name in values}
        return onnx.shape_inference.infer_node_outputs(
            schema, node, inputs, data, opset_imports=list(model.opset_import), ir_version=model.ir_version
        )
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError):
        return {}


def _type(dtype: int, dims: Dims) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(dtype, [None if dim == "?" else dim for dim in dims])


Rule = Callable[[NodeProto, list[list[int | str] | None]], dict[int, Dims]]
"""(node, dims of its inputs, the first of them known) → dims of its outputs."""


def _like_first(node: NodeProto, dims: list[list[int | str] | None]) -> dict[int, Dims]:
    """Apply to norms and activations; a norm's fourth output is the sum that it normalizes."""
    shape = dims[0] or []
    return {0: shape, 3: shape}


def _broadcast(node: NodeProto, dims: list[list[int | str] | None]) -> dict[int, Dims]:
    """Apply to arithmetic: an unknown dimension of one input is that of the other, unless that is 1."""
    left, right = dims
    if left is None or right is None:
        return {}
    rank = max(len(left), len(right))
    pairs = zip([1] * (rank - len(left)) + left, [1] * (rank - len(right)) + right, strict=True)
    return {0: [two if one in (1, "?") and (one, two) != ("?", 1) else one for one, two in pairs]}


def _attention(node: NodeProto, dims: list[list[int | str] | None]) -> dict[int, Dims]:
    """Apply to attention: the first output is shaped like the queries, which may be packed with keys and values."""
    *rows, width = dims[0] or ["?"]
    heads, kv_heads = _attribute(node, "num_heads", 1), _attribute(node, "kv_num_heads", 1)
    packed = len(node.input) < 2 or not node.input[1]
    if packed and isinstance(width, int):
        width = width * heads // (heads + 2 * kv_heads)
    return {0: [*rows, width]}


def _fused_matmul(node: NodeProto, dims: list[list[int | str] | None]) -> dict[int, Dims]:
    """Apply to x · W and x · Wᵀ, W being a matrix."""
    right = dims[1]
    if right is None or len(right) != 2 or _attribute(node, "transA", 0):
        return {}
    return {0: [*(dims[0] or [])[:-1], right[0 if _attribute(node, "transB", 0) else 1]]}


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Add", "Div", "Mul", "Sub"), _broadcast),
    "BiasGelu": _like_first,
    "FastGelu": _like_first,
    "FusedMatMul": _fused_matmul,
    "GroupQueryAttention": _attention,
    "MultiHeadAttention": _attention,
    "QuickGelu": _like_first,
    "SimplifiedLayerNormalization": _like_first,
    "SkipLayerNormalization": _like_first,
    "SkipSimplifiedLayerNormalization": _like_first,
}
"""Rules by op: ops of onnxruntime, and arithmetic with unknown dimensions."""
