"""NVIDIA Model Optimizer: float8 with scales, NVFP4, and integers of four bits (AWQ).

    FP8     X.weight  float8 [N, K]        X.weight_scale  [], or of outputs [N]
    MXFP8   X.weight  float8 [N, K]        X.weight_scale  uint8 [N, K / 32], exponents
    MXFP4   X.weight  uint8 [N, K / 2]     X.weight_scale  uint8 [N, K / 32], exponents
    NVFP4   X.weight  uint8 [N, K / 2]     X.weight_scale  float8 [N, K / 16]
            X.weight_scale_2  float32 [], by which scales are multiplied
    AWQ     X.weight  uint8 [N / 2, K]     X.weight_scale  float [N, K / group]
            X.pre_quant_scale  float [K], by which inputs are multiplied; also beside NVFP4

A byte of AWQ holds the signed integers of two outputs, the first in the low half. The tensors say which form a matrix
has, so that a checkpoint may mix them (MIXED_PRECISION). Scales of activations are left out, as those of
compressed-tensors. Older versions keep their options in hf_quant_config.json, and say nothing in config.json.
Source: nvidia-modelopt 0.47, torch/export/quant_utils.py.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints.quantized.float8 import ScaledSlice
from edgeformer.checkpoints.quantized.grouped_integers import Grouped, GroupedSlice
from edgeformer.checkpoints.quantized.microscaling import EXPONENTS, Float4Numbers, in_nvfp4, with_exponents
from edgeformer.checkpoints.quantized.stored import Stored, even_groups, matrices, read, whole_shape

BITS = 4
"""Bits of the integers of AWQ."""


class ScaledInputs:
    """A matrix [N, K] whose inputs are multiplied by factors [K] first, which is indexed as the matrix of both."""

    def __init__(self, matrix: Any, factors: Tensor):
        self._matrix, self._factors = matrix, factors

    def get_shape(self) -> list[int]:
        """Return the shape of the matrix."""
        shape: list[int] = self._matrix.get_shape()
        return shape

    def __getitem__(self, index: Any) -> Tensor:
        """Return rows of the matrix, float32."""
        rows: Tensor = self._matrix[index]
        return rows * self._factors


def modelopt_matrices(options: Mapping[str, Any], stored: Stored) -> dict[str, Any]:
    """Return the matrices of a checkpoint by the names of their modules. Raises WeightsError for other shapes."""
    found = {}
    for module in matrices(stored, "weight_scale"):
        matrix, factors = _matrix(stored, module), f"{module}.pre_quant_scale"
        if factors in stored:
            whole_shape(stored, factors, (matrix.get_shape()[1],))
            matrix = ScaledInputs(matrix, read(stored, factors).float())
        found[module] = matrix
    return found


def _matrix(stored: Stored, module: str) -> Any:
    name = f"{module}.weight"
    whole_shape(stored, name, 2)
    numbers, scales = stored[name].get_slice(name), read(stored, f"{module}.weight_scale")
    packed = numbers.get_dtype() == "U8"
    if scales.dtype in EXPONENTS:
        return with_exponents(name, Float4Numbers(numbers) if packed else numbers, scales)
    if not packed:
        return ScaledSlice(name, numbers, scales)
    if scales.dtype.itemsize > 1:
        return _integers(stored, module)
    whole_shape(stored, f"{module}.weight_scale_2", ())
    return in_nvfp4(name, numbers, scales.float() * read(stored, f"{module}.weight_scale_2").float())


def _integers(stored: Stored, module: str) -> GroupedSlice:
    """Return a matrix of AWQ."""
    pairs, inputs = whole_shape(stored, f"{module}.weight", 2)
    groups = whole_shape(stored, f"{module}.weight_scale", 2)[1]
    whole_shape(stored, f"{module}.weight_scale", (2 * pairs, groups))
    even_groups(f"{module}.weight", inputs, groups)
    return GroupedSlice((2 * pairs, inputs), BITS, partial(_read, stored, module))


def _read(stored: Stored, module: str) -> Grouped:
    packed = read(stored, f"{module}.weight")
    signed = torch.stack((packed & 15, packed >> 4), 1).flatten(0, 1)
    return Grouped(signed ^ (1 << (BITS - 1)), read(stored, f"{module}.weight_scale").float())
