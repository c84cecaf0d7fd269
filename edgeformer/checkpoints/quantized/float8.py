"""Matrices in float8 with scales: one for all, one for each output, or one for each block.

    X.weight  float8_e4m3fn [N, K]     X.weight_scale_inv  float32 [⌈N / 128⌉, ⌈K / 128⌉], or [] or [1]

A weight is its number times its scale, whatever the name says. Source: DeepSeek-V3's inference/kernel.py; transformers'
integrations/finegrained_fp8.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints.quantized.stored import Stored, matrices, read
from edgeformer.errors import WeightsError


class ScaledSlice:
    """A matrix [N, K] that is read when it is indexed. matrix: a slice of the file.

    scales: [], [1], [N, 1], or [B, C] of blocks of `block` rows and columns, which may be cut off at the ends. Raises
    WeightsError for other shapes.
    """

    def __init__(self, name: str, matrix: Any, scales: Tensor, block: tuple[int, int] | None = None):
        self._matrix = matrix
        rows, columns = matrix.get_shape()
        blocks = (1, 1) if scales.numel() == 1 else tuple(scales.reshape(len(scales), -1).shape)
        allowed = {(1, 1), (rows, 1)} | ({(-(-rows // block[0]), -(-columns // block[1]))} if block else set())
        if blocks not in allowed:
            raise WeightsError(
                f"{name} is {[rows, columns]} and has scales {list(scales.shape)}; known are one, one for each row, "
                f"and one for each block of {list(block or (128, 128))}. Download the checkpoint again."
            )
        whole = block is not None and blocks not in ((1, 1), (rows, 1))
        self._scales = scales.float().reshape(blocks)
        self._rows = torch.arange(rows) // (block[0] if whole and block else 1) if blocks[0] > 1 else None
        self._columns = torch.arange(columns) // (block[1] if block else 1) if blocks[1] > 1 else None

    def get_shape(self) -> list[int]:
        """Return the shape of the matrix."""
        shape: list[int] = self._matrix.get_shape()
        return shape

    def __getitem__(self, index: Any) -> Tensor:
        """Return rows of the matrix, float32."""
        scales = self._scales if self._rows is None else self._scales[self._rows[index]]
        if self._columns is not None:
            scales = scales[..., self._columns]
        numbers: Tensor = self._matrix[index]
        return numbers.float() * scales


def float8_matrices(options: Mapping[str, Any], stored: Stored) -> dict[str, ScaledSlice]:
    """Return the matrices of a checkpoint by the names of their modules. Raises WeightsError for other shapes."""
    size = options.get("weight_block_size")
    block = None if size is None else (size[0], size[1])
    found = {}
    for last in ("weight_scale_inv", "weight_scale"):
        for module in matrices(stored, last):
            name = f"{module}.weight"
            if name not in stored:
                raise WeightsError(f"the checkpoint has {module}.{last} and no {name}. Download it again.")
            scales = read(stored, f"{module}.{last}")
            found[module] = ScaledSlice(name, stored[name].get_slice(name), scales, block)
    return found
