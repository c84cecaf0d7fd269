"""Read MXFP4, the format of gpt-oss's experts: numbers of four bits, and an exponent for every 32 of them.

A weight [X, N, K] of X experts is two uint8 tensors: blocks [X, N, K / 32, 16] with two numbers in each byte, the first
in the low half, and scales [X, N, K / 32]. A number means E2M1(half) · 2^(scale − 127); float32 holds each exactly.
Source: OCP Microscaling Formats v1.0; transformers/integrations/mxfp4.py.
"""

from typing import Any

from torch import Tensor

from edgeformer.checkpoints.quantized.microscaling import float4_numbers, powers_of_two
from edgeformer.errors import WeightsError

BLOCKS, SCALES = "_blocks", "_scales"
"""Endings of the names of both tensors."""


class PackedSlice:
    """A weight in MXFP4 that is indexed as one float32 tensor [X, N, K], like a slice of a safetensors file.

    blocks, scales: slices of the file. Raises WeightsError if they do not belong together.
    """

    def __init__(self, name: str, blocks: Any, scales: Any):
        self._blocks, self._scales = blocks, scales
        shape, of_scales = list(blocks.get_shape()), list(scales.get_shape())
        if shape[:-1] != of_scales or shape[-1] != 16:
            raise WeightsError(
                f"{name} is {shape} and its scales are {of_scales}; MXFP4 has 16 bytes and one scale for every block "
                "of 32 numbers. Download the checkpoint again."
            )

    def get_shape(self) -> list[int]:
        """Return the shape of the weight."""
        *rows, blocks, size = self._blocks.get_shape()
        return [*rows, blocks * size * 2]

    def __getitem__(self, index: Any) -> Tensor:
        """Return the experts of an index along the first axis, float32; reads no other."""
        return dequantize(self._blocks[index], self._scales[index])


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return float32 [..., K] of blocks uint8 [..., K / 32, 16] and scales uint8 [..., K / 32]."""
    return (float4_numbers(blocks) * powers_of_two(scales)[..., None]).flatten(-2)
