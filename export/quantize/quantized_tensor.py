"""Weights of a graph that are quantized while the bundle is written.

A `QuantizedMatrix` becomes up to three tensors of the graph: `W.integers`, `W.scales` and, in an asymmetric format,
`W.zero_points`. The matrix owns the blocks that they share, and holds them only inside `with matrix.quantized()`.
Whoever reads many tensors takes them from `by_matrix`: each matrix is quantized once, and one at a time is in memory.
A large matrix whose parameter has its outputs as rows is quantized some rows at a time, and only their scales and zero
points are held: a table of embeddings may be larger than all other weights.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.checkpoints.expert_weights import StoredBlocks, read_blocks, read_rows, row_slices
from edgeformer.errors import ExportError
from edgeformer.export.graph.tensors import TORCH_DTYPES, StreamedTensor, join, multiplied
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.export.quantize.packing import PACKINGS, pack, pack_groups, unpack, unpack_groups
from edgeformer.export.quantize.rounding import QuantizedBlocks, concatenate, in_blocks, round_blocks
from edgeformer.manifest.parts import StoredWeight
from edgeformer.manifest.quantization import WeightFormat

Part = Literal["integers", "scales", "zero_points"]


@dataclass(eq=False)
class QuantizedMatrix:
    """A matrix that is quantized once for all of its parts.

    columns: the tensor is [K, N], as a product reads it; otherwise [N, K], as an embedding gather reads it. N are
    outputs or tokens, K inputs. calibrated: the blocks of parameters whose rounding is `gptq`.
    """

    tensor: StreamedTensor
    form: WeightFormat
    columns: bool
    calibrated: Calibrated | None = None

    def __post_init__(self) -> None:
        self.outputs, self.inputs = reversed(self.tensor.sizes) if self.columns else self.tensor.sizes
        source = self.tensor.source
        self._by_rows = source.transposed == self.columns  # the parameters are [N, K]
        divided = self._by_rows and len(source.parameters) == 1 and source.scaled is None
        divided = divided and self.form.block is not None and not self.form.reads_calibration
        self._slices = row_slices((self.outputs, self.inputs)) if divided else [slice(0, self.outputs)]
        self._kept: dict[int, QuantizedBlocks] | None = None

    def parts(self, *, flat: bool = False) -> list["QuantizedTensor"]:
        """Return new tensors for the integers, the scales and, in an asymmetric format, the zero points."""
        parts = [QuantizedTensor(self, "integers", flat=flat), QuantizedTensor(self, "scales")]
        return parts if self.form.symmetric else [*parts, QuantizedTensor(self, "zero_points")]

    @contextmanager
    def quantized(self) -> Iterator[None]:
        """Keep blocks that are quantized in a `with` block until its end; integers only of a matrix in one piece."""
        outer = self._kept
        self._kept = {} if outer is None else outer
        try:
            yield
        finally:
            self._kept = outer

    def pieces(self, part: Part) -> Iterator[QuantizedBlocks]:
        """Yield the quantized blocks of all outputs, of a large matrix some outputs at a time, for the sake of a part.

        Raises ExportError for weights that are not finite.
        """
        for rows in self._slices:
            blocks = self._kept.get(rows.start) if self._kept is not None else None
            if blocks is None or (part == "integers" and not len(blocks.integers)):
                blocks = self._quantize(rows)
                if self._kept is not None:
                    divided = len(self._slices) > 1
                    self._kept[rows.start] = replace(blocks, integers=blocks.integers[:0]) if divided else blocks
            yield blocks

    def _quantize(self, rows: slice) -> QuantizedBlocks:
        """Quantize some outputs, or all of them."""
        source, values = self.tensor.source, self.tensor.values
        if self.form.reads_calibration:
            assert self.calibrated is not None and self._by_rows
            return concatenate([self.calibrated[name] for name in source.parameters])
        if self._by_rows:
            found = [read_blocks(values, name, self.form, rows) for name in source.parameters]
            if any(each is not None for each in found):
                return concatenate(
                    [
                        self._rounded(name, rows) if kept is None else stored_blocks(kept, name)
                        for name, kept in zip(source.parameters, found, strict=True)
                    ]
                )
        if len(self._slices) > 1:
            weights = read_rows(values, source.parameters[0], rows).float()
        else:
            parameters = [values[name].float() for name in source.parameters]
            joined = torch.cat(parameters, 0 if self._by_rows else -1) if len(parameters) > 1 else parameters[0]
            weights = joined if self._by_rows else joined.t()
        return self._round(weights, source.parameters)

    def _rounded(self, parameter: str, rows: slice) -> QuantizedBlocks:
        return self._round(read_rows(self.tensor.values, parameter, rows).float(), (parameter,))

    def _round(self, weights: Tensor, parameters: Sequence[str]) -> QuantizedBlocks:
        check_finite(weights, parameters)
        return round_blocks(in_blocks(weights, self.form.block), self.form)


class Quantized(Protocol):
    """Anything that is quantized once for all of its parts while `quantized()` holds it."""

    form: WeightFormat

    def quantized(self) -> AbstractContextManager[object]:
        """Hold what the parts share for the length of a `with` block."""


class QuantizedPart(StreamedTensor):
    """One of the tensors that a quantized matrix, or a quantized stack of them, is stored in."""

    matrix: Quantized
    part: Part

    def half(self) -> "QuantizedPart":
        """Return the same part in float16."""
        tensor = self._in(ir.DataType.FLOAT16)
        tensor.source = self.source
        return tensor

    def _in(self, dtype: ir.DataType) -> "QuantizedPart":
        """Return a new tensor of this part, of a data type."""
        raise NotImplementedError


class QuantizedTensor(QuantizedPart):
    """One part of a quantized matrix [N, K], in B blocks of L inputs; zeros fill the last one.

    integers     uint8 [N, B, L · bits / 8], or [N, K · bits / 8] of the same bytes if `flat`, bits as products read
                 them; or, packed, [N, B, stored, …] of a file (packing.py)
    scales       float [N, B]
    zero_points  uint8 [N, ⌈B · bits / 8⌉]

    Per-channel integers are int8 [K, N] and their scales [N], as integer products read them.
    """

    def __init__(
        self,
        matrix: QuantizedMatrix,
        part: Part,
        *,
        flat: bool = False,
        packed: bool = False,
        scales_in: ir.DataType | None = None,
    ):
        per_channel, tensor = matrix.form.block is None, matrix.tensor
        integer = ir.DataType.INT8 if per_channel else ir.DataType.UINT8
        dtype = scales_in or tensor.dtype if part == "scales" else integer
        name = f"{tensor.name}.by_output.{part}" if per_channel else f"{tensor.name}.{part}"
        shape = ir.Shape(_packed_shape(matrix) if packed else _shape(matrix, part, flat))
        super().__init__(f"{name}.flat" if flat else name, dtype, shape, tensor.source, tensor.values)
        self.storage = name
        self.matrix: QuantizedMatrix = matrix
        self.part = part
        self._is_packed = packed

    def packed(self) -> "QuantizedTensor":
        """Return the integers without the bits that they do not use."""
        tensor = QuantizedTensor(self.matrix, "integers", packed=True)
        tensor.source = self.source
        return tensor

    def stored(self) -> StoredWeight:
        """Return the manifest's entry for this tensor."""
        return replace(super().stored(), quantized=self.matrix.form, part=self.part, columns=self.matrix.columns)

    def _copy(self) -> "QuantizedTensor":
        return self._in(self.dtype)

    def _in(self, dtype: ir.DataType) -> "QuantizedTensor":
        flat = self.name != self.storage
        return QuantizedTensor(self.matrix, self.part, flat=flat, packed=self._is_packed, scales_in=dtype)

    def chunks(self) -> Iterator[Tensor]:
        """Yield the tensor in the pieces in which its matrix is quantized, unless `matrix.quantized()` holds them."""
        return map(self._stored_part, self.matrix.pieces(self.part))

    def read(self) -> Tensor:
        """Return the tensor."""
        chunks = list(self.chunks())
        return torch.cat(chunks) if len(chunks) > 1 else chunks[0]

    def _stored_part(self, blocks: QuantizedBlocks) -> Tensor:
        form = self.matrix.form
        if self.part == "scales":
            return self._stored_scales(multiplied(blocks.scales / (1 << form.unused_bits), self.source.scaled, 0))
        if form.block is None:
            return (blocks.integers[:, 0].t().to(torch.int16) - form.zero).to(torch.int8).contiguous()
        if self.part == "zero_points":
            return pack(blocks.zeros, form.product_bits).contiguous()
        content = pack(blocks.integers << form.unused_bits, form.product_bits).contiguous()
        return pack_groups(content, PACKINGS[form.bits]) if self._is_packed else content

    def _stored_scales(self, scales: Tensor) -> Tensor:
        return stored_scales(scales.reshape(-1, *self.sizes[1:]), self.dtype, self.source.parameters)


def unpacked(integers: Tensor, form: WeightFormat) -> Tensor:
    """Return the integers [N, B, L · bits / 8] that products read, of those that a file has."""
    return unpack_groups(integers, PACKINGS[form.bits]) if form.stored_bits != form.product_bits else integers


def stored_scales(scales: Tensor, dtype: ir.DataType, parameters: tuple[str, ...]) -> Tensor:
    """Return scales in the type that a graph has them in. Raises ExportError for those beyond float16."""
    stored = scales.to(TORCH_DTYPES[dtype])
    if torch.isinf(stored).any():
        raise ExportError(
            f"{', '.join(parameters)} holds values whose scales are beyond float16's 65504. Export with --provider cpu "
            "and float32 scales."
        )
    return stored


def _packed_shape(matrix: QuantizedMatrix) -> tuple[int, ...]:
    outputs, blocks, content = _shape(matrix, "integers", flat=False)
    packing = PACKINGS[matrix.form.bits]
    return outputs, blocks, packing.stored, content // packing.group


def _shape(matrix: QuantizedMatrix, part: Part, flat: bool) -> tuple[int, ...]:
    outputs, inputs, form = matrix.outputs, matrix.inputs, matrix.form
    if form.block is None:
        return (outputs,) if part == "scales" else (inputs, outputs)
    blocks = form.blocks_of(inputs)
    if part == "integers":
        of_row, of_block = (each * form.product_bits // 8 for each in (inputs, form.block))
        return (outputs, of_row) if flat else (outputs, blocks, of_block)
    return outputs, blocks if part == "scales" else -(-blocks * form.bits // 8)


@contextmanager
def quantized_once(tensors: Iterable[object]) -> Iterator[None]:
    """Hold the quantized matrices of all parts among `tensors` for the length of a `with` block."""
    with ExitStack() as stack:
        for tensor in tensors:
            if isinstance(tensor, QuantizedPart):
                stack.enter_context(tensor.matrix.quantized())
        yield


def by_matrix(tensors: Mapping[str, StreamedTensor]) -> Iterator[tuple[str, StreamedTensor]]:
    """Yield tensors with their keys; a quantized matrix is held while its parts are yielded.

    The parts of one matrix are yielded in succession, wherever they are in the mapping, so that it is quantized once
    and released before the next tensor. Otherwise the order is that of the mapping.
    """
    groups: dict[int, list[str]] = {}
    for key, tensor in tensors.items():
        owner = tensor.matrix if isinstance(tensor, QuantizedPart) else tensor
        groups.setdefault(id(owner), []).append(key)
    for keys in groups.values():
        with quantized_once(tensors[key] for key in keys):
            for key in keys:
                yield key, tensors[key]


def concatenate_matrices(name: str, matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Return one matrix with the outputs of several matrices [K, N] of one format."""
    first = matrices[0]
    tensor = join(name, [matrix.tensor for matrix in matrices])
    return QuantizedMatrix(tensor, first.form, columns=first.columns, calibrated=first.calibrated)


def stored_blocks(stored: StoredBlocks, parameter: str) -> QuantizedBlocks:
    """Return the blocks that a checkpoint stores, without a rounding of ours."""
    integers, scales, zeros = stored
    check_finite(scales, (parameter,))
    return QuantizedBlocks(integers, scales, zeros)


def is_finite(x: Tensor) -> bool:
    """Whether all numbers are finite. torch.isfinite takes over ten times as long, because it writes a mask first."""
    return x.numel() == 0 or all(bound.isfinite() for bound in x.aminmax())


def check_finite(rows: Tensor, parameters: Sequence[str]) -> None:
    """Raise ExportError if the matrix `rows`, made of these parameters, has values that are not finite."""
    if not is_finite(rows):
        raise ExportError(
            f"{', '.join(parameters)} holds values that are not finite; they cannot be quantized. "
            "Export with --precision fp32."
        )


def dequantized(parts: Mapping[str, Tensor], form: WeightFormat) -> Tensor:
    """Return the matrix [N, K] float32 of stored parts, whose integers are as products read them.

    K are the inputs of whole blocks, with the zeros that fill the last one.
    """
    if form.block is None:
        return parts["integers"].t().float() * parts["scales"].float()[:, None]
    outputs, blocks = parts["scales"].shape
    packed = parts["integers"].reshape(outputs, blocks, -1)
    zeros: float | Tensor = 1 << (form.product_bits - 1)
    if "zero_points" in parts:
        zeros = unpack(parts["zero_points"], form.product_bits, blocks)[..., None].float()
    steps = torch.empty(outputs, blocks, form.block)
    if form.product_bits == 4:  # as `unpack`, without a copy of the integers
        steps[..., ::2], steps[..., 1::2] = packed & 15, packed >> 4
    else:
        steps.copy_(packed)
    return steps.sub_(zeros).mul_(parts["scales"].float()[..., None]).flatten(1)
