"""Weights of a graph that are quantized while the bundle is written.

A matrix becomes up to three tensors: `W.integers`, `W.scales` and, in an asymmetric format, `W.zero_points`. They are
made of the same parameters and written one after the other, so the matrix is rounded once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.errors import ExportError
from edgeformer.export.graph.tensors import TORCH_DTYPES, StreamedTensor, join, multiplied
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.export.quantize.packing import pack, unpack
from edgeformer.export.quantize.rounding import Rounded, joined, round_blocks
from edgeformer.manifest import StoredWeight
from edgeformer.quantization import WeightFormat

Part = Literal["integers", "scales", "zero_points"]


class QuantizedTensor(StreamedTensor):
    """One part of a quantized matrix.

    integers     uint8 [N, B, L · bits / 8]      N outputs, or tokens of an embedding, in B blocks of L inputs
    scales       float [N, B]
    zero_points  uint8 [N, ⌈B · bits / 8⌉]

    With one scale an output they are int8 [K, N] and float [N], as integer products read them.

    columns: the matrix is stored [K, N], as a product reads it; otherwise [N, K], as an embedding is read. flat:
    integers as [N, K · bits / 8], for which other tensors' bytes serve. calibrated: where a matrix of the rounding
    `gptq` is rounded already.
    """

    def __init__(
        self,
        matrix: StreamedTensor,
        form: WeightFormat,
        part: Part,
        columns: bool,
        flat: bool = False,
        calibrated: Calibrated | None = None,
    ):
        outputs, inputs = reversed(matrix.sizes) if columns else matrix.sizes
        shapes, integer, name = _shapes(outputs, inputs, form, flat), ir.DataType.UINT8, f"{matrix.name}.{part}"
        if form.block is None:
            integer, name = ir.DataType.INT8, f"{matrix.name}.by_output.{part}"
        dtype = matrix.dtype if part == "scales" else integer
        super().__init__(f"{name}.flat" if flat else name, dtype, ir.Shape(shapes[part]), matrix.source, matrix.values)
        self.storage = name
        self.form = form
        self.part = part
        self.matrix = matrix
        self.columns = columns
        self.calibrated = calibrated

    def stored(self) -> StoredWeight:
        """What the manifest says of it."""
        return replace(super().stored(), quantized=self.form, part=self.part, columns=self.columns)

    def _copy(self) -> "QuantizedTensor":
        flat = self.name != self.storage
        return QuantizedTensor(self.matrix, self.form, self.part, self.columns, flat, self.calibrated)

    def read(self) -> Tensor:
        """Round the matrix, if it was not just rounded for another part, and take this one."""
        rounded = _rounded(self.matrix, self.form, self.columns, self.calibrated)
        if self.part == ("scales" if self.form.symmetric else "zero_points"):
            _rounded.cache_clear()  # the last part: neither the matrix nor the model may stay behind
        if self.part == "scales":
            return self._scales(multiplied(rounded.scales, self.source.scaled, 0))
        if self.form.block is None:
            return (rounded.integers[:, 0].t().to(torch.int16) - self.form.zero).to(torch.int8).contiguous()
        return pack(rounded.integers if self.part == "integers" else rounded.zeros, self.form.bits).contiguous()

    def _scales(self, scales: Tensor) -> Tensor:
        stored = scales.reshape(self.sizes).to(TORCH_DTYPES[self.dtype])
        if torch.isinf(stored).any():
            raise ExportError(
                f"{', '.join(self.source.parameters)} holds values whose scales are beyond float16's 65504. "
                "Export with --provider cpu."
            )
        return stored


def concatenate_quantized(name: str, weights: Sequence[Sequence[QuantizedTensor]]) -> list[QuantizedTensor]:
    """The parts of several matrices [K, N] as those of one, with the outputs of one behind those of the other."""
    matrix = join(name, [parts[0].matrix for parts in weights])  # one for all parts: it is rounded once
    return [
        QuantizedTensor(matrix, part.form, part.part, part.columns, calibrated=part.calibrated) for part in weights[0]
    ]


def _shapes(outputs: int, inputs: int, form: WeightFormat, flat: bool) -> dict[Part, tuple[int, ...]]:
    if form.block is None:
        return {"integers": (inputs, outputs), "scales": (outputs,)}
    blocks = inputs // form.block
    return {
        "integers": (outputs, inputs * form.bits // 8) if flat else (outputs, blocks, form.block * form.bits // 8),
        "scales": (outputs, blocks),
        "zero_points": (outputs, -(-blocks * form.bits // 8)),
    }


@lru_cache(maxsize=1)
def _rounded(matrix: StreamedTensor, form: WeightFormat, columns: bool, calibrated: Calibrated | None) -> Rounded:
    """The matrix that was last asked for; parts of one are written in a row."""
    if form.rounding == "gptq":
        assert calibrated is not None and matrix.source.transposed == columns
        return joined([calibrated[name] for name in matrix.source.parameters])
    parameters = [matrix.values[name].float() for name in matrix.source.parameters]
    rows = _beside(parameters, 0) if matrix.source.transposed == columns else _beside(parameters, -1).t()
    check_finite(rows, matrix.source.parameters)
    return round_blocks(rows.reshape(rows.shape[0], -1, form.block or rows.shape[1]), form)


def _beside(parameters: list[Tensor], axis: int) -> Tensor:
    """Several matrices as one; one is not copied."""
    return parameters[0] if len(parameters) == 1 else torch.cat(parameters, axis)


def is_finite(x: Tensor) -> bool:
    """Whether all numbers are: isfinite would write a mask first, which takes over ten times as long."""
    return x.numel() == 0 or all(bound.isfinite() for bound in x.aminmax())


def check_finite(rows: Tensor, parameters: Sequence[str]) -> None:
    """Raise ExportError for a matrix, made of these parameters, that no integers can stand for."""
    if not is_finite(rows):
        raise ExportError(
            f"{', '.join(parameters)} holds values that are not finite; they cannot be quantized. "
            "Export with --precision fp32."
        )


def dequantized(parts: Mapping[str, Tensor], form: WeightFormat) -> Tensor:
    """The matrix [N, K] float32 that stored parts mean."""
    if form.block is None:
        return parts["integers"].t().float() * parts["scales"].float()[:, None]
    outputs, blocks = parts["scales"].shape
    integers = unpack(parts["integers"].reshape(outputs, -1), form.bits, blocks * form.block)
    zeros = unpack(parts["zero_points"], form.bits, blocks) if "zero_points" in parts else None
    steps = integers.reshape(outputs, blocks, form.block).float() - (form.zero if zeros is None else zeros[..., None])
    return (steps * parts["scales"].float()[..., None]).flatten(1)
