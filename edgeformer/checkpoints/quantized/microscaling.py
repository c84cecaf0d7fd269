"""Microscaling: numbers of four or eight bits, in short blocks that share a scale.

    MXFP4, MXFP8   scales uint8 or float8_e8m0fnu [N, K / 32], exponents: 2^(scale − 127)
    NVFP4          scales float8_e4m3fn [N, K / 16], and one float32 for the matrix

Numbers of four bits are E2M1, two in a byte with the first in the low half.

Source: OCP Microscaling Formats v1.0; NVIDIA's cuDNN, "block scaling".
"""

from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints.quantized.float8 import ScaledSlice

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Numbers of E2M1 by their lower three bits; the fourth is the sign."""
BIAS = 127
"""The exponent that is stored for 2⁰."""
MX_BLOCK, NV_BLOCK = 32, 16
"""Inputs that share a scale."""
EXPONENTS = (torch.uint8, torch.float8_e8m0fnu)
"""Types of scales that are powers of two."""


class Float4Numbers:
    """A matrix of numbers without scales [N, K] that is read when it is indexed. packed: slice of a file [N, K / 2]."""

    def __init__(self, packed: Any):
        self._packed = packed

    def get_shape(self) -> list[int]:
        """Return the shape of the matrix."""
        *rows, half = self._packed.get_shape()
        return [*rows, 2 * half]

    def __getitem__(self, index: Any) -> Tensor:
        """Return rows of the matrix, float32."""
        return float4_numbers(self._packed[index])


def float4_numbers(packed: Tensor) -> Tensor:
    """Return float32 [..., 2 n] of bytes [..., n]."""
    table = torch.tensor(MAGNITUDES + tuple(-number for number in MAGNITUDES))
    packed = packed.view(torch.uint8)
    halves: Tensor = table[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).int()]
    return halves


def powers_of_two(scales: Tensor) -> Tensor:
    """Return what exponents, uint8 or float8_e8m0fnu, mean, in float32, which holds each exactly."""
    exponents = scales.view(torch.uint8).int() - BIAS
    return torch.ldexp(torch.ones(exponents.shape), exponents)


def with_exponents(name: str, numbers: Any, scales: Tensor) -> ScaledSlice:
    """Return a matrix in MXFP4 or MXFP8. numbers: a slice [N, K]. Raises WeightsError for scales of other blocks."""
    return ScaledSlice(name, numbers, powers_of_two(scales), (1, MX_BLOCK))


def in_nvfp4(name: str, packed: Any, scales: Tensor) -> ScaledSlice:
    """Return a matrix in NVFP4. scales: float32, the matrix' own included. Raises WeightsError for other blocks."""
    return ScaledSlice(name, Float4Numbers(packed), scales, (1, NV_BLOCK))
