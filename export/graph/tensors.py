"""Weights of a graph that holds no bytes yet: tensors that read themselves when the bundle is written.

A `StreamedTensor` has a name, a dtype, a shape and a source: the parameters of the module that it is joined from along
its last axis, transposed or not. Passes rearrange weights by rewriting sources; bytes are read, rearranged and released
one tensor at a time (of stacked experts one expert, of large tables some rows), when the bundle is written. The
manifest lists the sources, so that the parameters can be read back from a bundle.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.checkpoints.expert_weights import is_large, read_expert, read_rows, row_slices
from edgeformer.errors import ExportError
from edgeformer.manifest.parts import Arithmetic, ScaledOutputs, StoredWeight

TORCH_PRECISIONS: dict[Arithmetic, torch.dtype] = {
    "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
}  # fmt: skip

TORCH_DTYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT64: torch.int64,
    ir.DataType.INT32: torch.int32,
    ir.DataType.BOOL: torch.bool,
}


PAGE = 4096
"""Bytes: in a file of weights a tensor of at least a page starts at a multiple of it, because memory maps do."""


def stored_bytes(size: int) -> int:
    """Return the bytes of a file that a tensor of `size` bytes takes at most, with what aligns the next one."""
    return -(-size // PAGE) * PAGE


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, in float32 if it is of bfloat16, which numpy does not have."""
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


@dataclass(frozen=True)
class TensorSource:
    """The parameters that a stored tensor is joined from along its last axis.

    transposed: a parameter [out, in] is stored as [in, out]. scaled: factor of the first outputs of the joined tensor.
    interleaved: the parameters [X, out, …] of X experts are joined along axis 1 instead, and their entries alternate.
    """

    parameters: tuple[str, ...]
    transposed: bool = False
    scaled: ScaledOutputs | None = None
    interleaved: bool = False


class StreamedTensor(ir.LazyTensor):
    """An initializer that is computed from `values` by its source on every read and never kept.

    storage: tensors of equal storage are the same bytes in the file, whatever their shapes.
    """

    def __init__(
        self, name: str, dtype: ir.DataType, shape: ir.Shape, source: TensorSource, values: Mapping[str, Tensor]
    ):
        super().__init__(self._evaluate, dtype=dtype, shape=shape, name=name, cache=False)
        self.source = source
        self.values = values
        self.storage = name

    @property
    def sizes(self) -> list[int]:
        """The shape as integers."""
        return [int(size) for size in self.shape.numpy()]

    def stored(self) -> StoredWeight:
        """Return its entry in the manifest."""
        source = self.source
        return StoredWeight(
            parameters=source.parameters,
            transposed=source.transposed,
            scaled=source.scaled,
            interleaved=source.interleaved,
        )

    def of(self, values: Mapping[str, Tensor]) -> "StreamedTensor":
        """Return the same tensor, computed from other values."""
        tensor = self._copy()
        tensor.values = values
        return tensor

    def scaled(self, outputs: int, factor: float) -> "StreamedTensor":
        """Return the weight or bias that multiplies the first `outputs` outputs of a product by `factor`."""
        tensor = self._copy()
        tensor.source = replace(self.source, scaled=ScaledOutputs(outputs=outputs, factor=factor))
        return tensor

    def _copy(self) -> "StreamedTensor":
        return StreamedTensor(self.name or "", self.dtype, self.shape, self.source, self.values)

    def _evaluate(self) -> ir.TensorProtocol:
        return ir.tensor_adapters.TorchTensor(self.read())

    def read(self) -> Tensor:
        """Read the parameters and join them. Raises ExportError for values beyond the range of float16."""
        dtype = TORCH_DTYPES[self.dtype]
        parts = [self._read_parameter(parameter, dtype) for parameter in self.source.parameters]
        if self.source.interleaved:
            return torch.stack(parts, 2).flatten(1, 2)
        joined = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        return multiplied(joined, self.source.scaled, -1).contiguous()

    def chunks(self) -> Iterator[Tensor]:
        """Yield the tensor in parts along its first axis: experts of a large stack, rows of a large table, or all."""
        source, dtype = self.source, TORCH_DTYPES[self.dtype]
        if is_large(self.sizes):
            for expert in range(self.sizes[0]):
                yield self.read_expert(expert).contiguous()
        elif len(self.sizes) == 2 and len(source.parameters) == 1 and not source.transposed and source.scaled is None:
            (parameter,) = source.parameters
            for rows in row_slices(self.sizes):
                yield self._cast(parameter, read_rows(self.values, parameter, rows), dtype).contiguous()
        else:
            yield self.read()

    def read_expert(self, expert: int) -> Tensor:
        """Read one expert of a tensor [X, …] of X experts."""
        dtype = TORCH_DTYPES[self.dtype]
        parts = [
            self._cast(parameter, read_expert(self.values, parameter, expert), dtype)
            for parameter in self.source.parameters
        ]
        return torch.stack(parts, 1).flatten(0, 1) if self.source.interleaved else parts[0]

    def _read_parameter(self, parameter: str, dtype: torch.dtype) -> Tensor:
        value = self._cast(parameter, self.values[parameter], dtype)
        return value.t() if self.source.transposed else value

    def _cast(self, parameter: str, stored: Tensor, dtype: torch.dtype) -> Tensor:
        value = stored.to(dtype)
        if dtype == torch.float16 and torch.isinf(value).any() and not torch.isinf(stored).any():
            raise ExportError(
                f"{parameter} holds values up to {stored.abs().max().item():.3g}, beyond float16's 65504. "
                "Export with --precision fp32."
            )
        return value


def transpose(tensor: StreamedTensor) -> StreamedTensor:
    """Return the same matrix with its axes exchanged."""
    assert len(tensor.source.parameters) == 1, "transpose before joining"
    source = replace(tensor.source, transposed=not tensor.source.transposed)
    shape = ir.Shape(tensor.sizes[::-1])
    return StreamedTensor(tensor.name or "", tensor.dtype, shape, source, tensor.values)


def join(name: str, tensors: list[StreamedTensor]) -> StreamedTensor:
    """Concatenate matrices or vectors along the last axis."""
    first = tensors[0]
    assert len({tensor.source.transposed for tensor in tensors}) == 1, "all transposed, or none"
    parameters = tuple(parameter for tensor in tensors for parameter in tensor.source.parameters)
    shape = ir.Shape([*first.sizes[:-1], sum(tensor.sizes[-1] for tensor in tensors)])
    return StreamedTensor(name, first.dtype, shape, TensorSource(parameters, first.source.transposed), first.values)


def interleave(name: str, tensors: list[StreamedTensor]) -> StreamedTensor:
    """Join tensors [X, out, …] of X experts along axis 1, with entry 0 of each, then entry 1 of each …"""
    first = tensors[0]
    experts, outputs, *rest = first.sizes
    parameters = tuple(parameter for tensor in tensors for parameter in tensor.source.parameters)
    shape = ir.Shape([experts, outputs * len(tensors), *rest])
    return StreamedTensor(name, first.dtype, shape, TensorSource(parameters, interleaved=True), first.values)


def multiplied(stored: Tensor, scaled: ScaledOutputs | None, axis: int) -> Tensor:
    """Multiply the first outputs of a tensor, along an axis, by their factor."""
    if scaled is None:
        return stored
    first, rest = stored.tensor_split([scaled.outputs], axis)
    return torch.cat([first * scaled.factor, rest], axis)


def unscaled(stored: Tensor, scaled: ScaledOutputs | None, axis: int) -> Tensor:
    """Undo `multiplied`."""
    return multiplied(stored, scaled and replace(scaled, factor=1 / scaled.factor), axis)


def split_stored(stored: Tensor, source: TensorSource, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Split a stored tensor into the parameters that it was joined from."""
    if source.interleaved:
        count = len(source.parameters)
        return {name: stored[:, index::count] for index, name in enumerate(source.parameters)}
    widths = [shapes[name][0 if source.transposed else -1] for name in source.parameters]
    parts = stored.split(widths, -1)
    return {name: part.t() if source.transposed else part for name, part in zip(source.parameters, parts, strict=True)}
