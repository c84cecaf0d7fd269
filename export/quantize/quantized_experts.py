"""Stacked weights of experts that are quantized while the bundle is written, one expert at a time.

As of a `QuantizedMatrix`, there are up to three tensors: integers, scales and zero points. While the integers are
written expert by expert, the scales and zero points of all experts, an eighth of the bytes at most, are kept for the
tensors that follow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.checkpoints.expert_weights import read_blocks
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.export.quantize.packing import pack
from edgeformer.export.quantize.quantized_tensor import (
    Part,
    QuantizedPart,
    check_finite,
    stored_blocks,
    stored_scales,
)
from edgeformer.export.quantize.rounding import QuantizedBlocks, round_blocks
from edgeformer.manifest.parts import StoredWeight
from edgeformer.manifest.quantization import WeightFormat

PARTS = ("integers", "scales", "zeros")


class QuantizedExperts:
    """Weights [X, N, K] of X experts, each of which is quantized once for all of its parts."""

    def __init__(self, tensor: StreamedTensor, form: WeightFormat):
        assert form.block is not None and not form.reads_calibration, "experts are quantized in blocks, by themselves"
        self.tensor = tensor
        self.form = form
        self.block: int = form.block
        self._kept: dict[int, dict[Part, Tensor]] | None = None

    def parts(self) -> list["ExpertsPart"]:
        """Return new tensors for the integers, the scales and, in an asymmetric format, the zero points."""
        names: list[Part] = ["integers", "scales"] if self.form.symmetric else ["integers", "scales", "zero_points"]
        return [ExpertsPart(self, part) for part in names]

    @contextmanager
    def quantized(self) -> Iterator[None]:
        """Keep the scales and zero points of experts that are quantized in a `with` block, until its end."""
        outer = self._kept
        self._kept = {} if outer is None else outer
        try:
            yield
        finally:
            self._kept = outer

    def read(self, expert: int, part: Part) -> Tensor:
        """Return one part of one expert, scales in float32. Raises ExportError for weights that are not finite."""
        kept = self._kept.get(expert, {}) if self._kept is not None else {}
        if part in kept:
            return kept[part]
        blocks = self._stored_blocks(expert) or self._rounded(expert)
        parts: dict[Part, Tensor] = {"scales": blocks.scales, "zero_points": pack(blocks.zeros, self.form.bits)}
        if self._kept is not None:
            self._kept[expert] = parts
        return pack(blocks.integers, self.form.bits).flatten(1) if part == "integers" else parts[part]

    def _rounded(self, expert: int) -> QuantizedBlocks:
        rows = self.tensor.read_expert(expert).float()  # [N, K]
        check_finite(rows, self.tensor.source.parameters)
        return round_blocks(rows.reshape(len(rows), -1, self.block), self.form)

    def _stored_blocks(self, expert: int) -> QuantizedBlocks | None:
        """Return the blocks that the checkpoint stores for all parameters of an expert, None unless it has them."""
        source = self.tensor.source
        if source.transposed:
            return None
        parts = []
        for name in source.parameters:
            found = read_blocks(self.tensor.values, name, self.form, expert)
            if found is None:
                return None
            parts.append(stored_blocks(found, name))
        if len(parts) == 1:
            return parts[0]
        joined = (torch.stack([getattr(part, each) for part in parts], 1).flatten(0, 1) for each in PARTS)
        return QuantizedBlocks(*joined)


class ExpertsPart(QuantizedPart):
    """One part of the quantized weights [X, N, K] of X experts, in B blocks of each row.

    integers     uint8 [X, N, K · bits / 8]
    scales       float [X, N, B]
    zero_points  uint8 [X, N, ⌈B · bits / 8⌉]
    """

    def __init__(self, matrix: QuantizedExperts, part: Part, scales_in: ir.DataType | None = None):
        tensor, form = matrix.tensor, matrix.form
        experts, outputs, inputs = tensor.sizes
        blocks = inputs // matrix.block
        packed = inputs * form.bits // 8 if part == "integers" else -(-blocks * form.bits // 8)
        shape = ir.Shape([experts, outputs, blocks if part == "scales" else packed])
        dtype = scales_in or tensor.dtype if part == "scales" else ir.DataType.UINT8
        super().__init__(f"{tensor.name}.{part}", dtype, shape, tensor.source, tensor.values)
        self.matrix: QuantizedExperts = matrix
        self.part = part

    def stored(self) -> StoredWeight:
        """Return the manifest's entry for this tensor."""
        return replace(super().stored(), quantized=self.matrix.form, part=self.part)

    def _copy(self) -> "ExpertsPart":
        return self._in(self.dtype)

    def _in(self, dtype: ir.DataType) -> "ExpertsPart":
        return ExpertsPart(self.matrix, self.part, dtype)

    def read_expert(self, expert: int) -> Tensor:
        """Return the part of one expert."""
        part = self.matrix.read(expert, self.part)
        if self.part == "scales":
            part = stored_scales(part, self.dtype, self.source.parameters)
        return part.contiguous()

    def chunks(self) -> Iterator[Tensor]:
        """Yield the part expert by expert."""
        return map(self.read_expert, range(self.sizes[0]))

    def read(self) -> Tensor:
        """Return the part of all experts."""
        return torch.stack(list(self.chunks()))
