"""Read what a graph says of its tensors, without external data: types, sizes, hashes, small values."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import TensorProto

FEW = 8
"""Largest number of elements of a tensor that is shown by its values."""

DTYPES: dict[int, str] = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"}
"""Names of types, numpy's rather than ONNX's."""


@dataclass(frozen=True, kw_only=True)
class Initializer:
    """A named tensor of a graph. bytes: of its values. inside: the tensor, if the graph's file holds its values."""

    name: str
    dtype: int
    dims: tuple[int, ...]
    bytes: int
    inside: TensorProto | None

    @property
    def type(self) -> str:
        """Return the type as `float32[256, 704]`."""
        return tensor_type(self.dtype, self.dims)

    @property
    def small(self) -> bool:
        """Return whether the tensor is shown by its values."""
        return self.inside is not None and is_small(self.inside)


def initializers_of(graph: onnx.GraphProto) -> Iterator[Initializer]:
    """Yield all initializers in order; a sparse one counts its stored bytes."""
    for tensor in graph.initializer:
        yield as_initializer(tensor.name, tensor)
    for sparse in graph.sparse_initializer:
        yield Initializer(
            name=sparse.values.name,
            dtype=sparse.values.data_type,
            dims=tuple(sparse.dims),
            bytes=tensor_bytes(sparse.values) + tensor_bytes(sparse.indices),
            inside=None,
        )


def as_initializer(name: str, tensor: TensorProto) -> Initializer:
    """Describe a tensor under a name."""
    return Initializer(
        name=name,
        dtype=tensor.data_type,
        dims=tuple(tensor.dims),
        bytes=tensor_bytes(tensor),
        inside=tensor if _is_inside(tensor) else None,
    )


def constant_of(node: onnx.NodeProto) -> TensorProto | None:
    """Return the tensor that a Constant node holds; None for other nodes and for constants that are not tensors."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    if attribute.ref_attr_name:
        return None
    match attribute.name:
        case "value":
            return attribute.t
        case "value_int":
            return onnx.helper.make_tensor("", TensorProto.INT64, [], [attribute.i])
        case "value_ints":
            return onnx.helper.make_tensor("", TensorProto.INT64, [len(attribute.ints)], attribute.ints)
        case "value_float":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, [], [attribute.f])
        case "value_floats":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, [len(attribute.floats)], attribute.floats)
    return None


def tensor_bytes(tensor: TensorProto) -> int:
    """Return the bytes of a tensor's values, from its type and shape."""
    if tensor.data_type == TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    return math.ceil(ir.DataType(tensor.data_type).itemsize * math.prod(tensor.dims))


def digest(tensor: TensorProto) -> str:
    """Return a hash of a tensor's values, however stored; for an external tensor, a hash of its name."""
    if not _is_inside(tensor):
        return hashlib.sha256(tensor.name.encode()).hexdigest()
    array = onnx.numpy_helper.to_array(tensor)
    content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return hashlib.sha256(content).hexdigest()


def is_small(tensor: TensorProto) -> bool:
    """Return whether a tensor is shown by its values."""
    return _is_inside(tensor) and math.prod(tensor.dims) <= FEW


def small_values(tensor: TensorProto) -> str:
    """Return the values of a small tensor as `{1, 2}`."""
    values = onnx.numpy_helper.to_array(tensor).flatten()
    return "{" + ", ".join(str(value) for value in values) + "}"


def dtype_name(dtype: int) -> str:
    """Return the name of a type, such as `float32`."""
    return DTYPES.get(dtype) or TensorProto.DataType.Name(dtype).lower()


def tensor_type(dtype: int, dims: Sequence[int | str]) -> str:
    """Return a tensor type as `float32[256, 704]`."""
    return f"{dtype_name(dtype)}[{', '.join(map(str, dims))}]"


def dims_of(value: onnx.TypeProto) -> list[int | str] | None:
    """Return the dimensions of a tensor's type, `?` for one without size and name; None if the rank is unknown."""
    if not value.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in value.tensor_type.shape.dim]


def value_type(value: onnx.TypeProto) -> str:
    """Return the type of a value as text; `?` if there is none."""
    match value.WhichOneof("value"):
        case None:
            return "?"
        case "tensor_type":
            dims = dims_of(value)
            dtype = value.tensor_type.elem_type
            return f"{dtype_name(dtype)}[…]" if dims is None else tensor_type(dtype, dims)
        case "sequence_type":
            return f"sequence of {value_type(value.sequence_type.elem_type)}"
        case "optional_type":
            return f"optional {value_type(value.optional_type.elem_type)}"
        case other:
            return other.removesuffix("_type").replace("_", " ")


def _is_inside(tensor: TensorProto) -> bool:
    return tensor.data_location != TensorProto.EXTERNAL
