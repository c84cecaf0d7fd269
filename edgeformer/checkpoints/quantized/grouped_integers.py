"""A matrix in integers whose columns have scales by groups, which is indexed as the matrix that it means.

weight[n, k] = scale[n, g] · (integer[n, k] − zero[n, g]) + offset[n, g],   g the group of column k
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeformer.errors import WeightsError

WORD = 32
"""Bits of the int32 numbers that integers are packed into."""


@dataclass(frozen=True)
class Grouped:
    """The numbers of a matrix [N, K] in G groups of columns.

    Attributes:
        integers: uint8 [N, K].
        scales: float32 [N, G].
        zeros: uint8 [N, G]; None for 2^(bits − 1), the middle of the range.
        groups: of each column, int64 [K]; None for K / G columns after another.
        offsets: float32 [N, G], added to the weights; None for 0. Only beside groups that are adjacent.
    """

    integers: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    groups: Tensor | None = None
    offsets: Tensor | None = None

    def in_order(self) -> "Grouped":
        """Return the same without `groups`, where these are K / G columns after another.

        Raises WeightsError for a column in a group that is not there.
        """
        columns, groups = self.integers.shape[1], self.scales.shape[1]
        if self.groups is not None and not 0 <= int(self.groups.min()) <= int(self.groups.max()) < groups:
            raise WeightsError(
                f"a matrix of {groups} groups has columns in group {int(self.groups.max())} (g_idx). Download it again."
            )
        if self.groups is None or columns % groups:
            return self
        plain = torch.arange(columns) // (columns // groups)
        return Grouped(self.integers, self.scales, self.zeros) if torch.equal(self.groups.long(), plain) else self


class GroupedSlice:
    """A matrix that is read when it is indexed, like a slice of a safetensors file.

    shape: of the matrix. bits: of its integers. read: reads its numbers.
    """

    def __init__(self, shape: tuple[int, int], bits: int, read: Callable[[], Grouped]):
        self._shape, self._bits, self._read = shape, bits, read

    def get_shape(self) -> list[int]:
        """Return the shape of the matrix."""
        return list(self._shape)

    def __getitem__(self, index: Any) -> Tensor:
        """Return rows of the matrix, float32."""
        found = self._read().in_order()
        integers, scales = found.integers[index], found.scales[index]
        zeros = torch.full_like(scales, 1 << (self._bits - 1)) if found.zeros is None else found.zeros[index].float()
        if found.groups is None:
            width = integers.shape[-1] // scales.shape[-1]
            steps = integers.float().unflatten(-1, (-1, width)) - zeros[..., None]
            weights = steps * scales[..., None]
            return (weights if found.offsets is None else weights + found.offsets[index][..., None]).flatten(-2)
        return (integers.float() - zeros[..., found.groups]) * scales[..., found.groups]

    def blocks(
        self, bits: int, block: int | None, symmetric: bool, index: Any = ...
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the integers uint8 [N, B, L], scales float32 and zero points uint8 [N, B] of rows, as they are stored.

        A group may fill several blocks. None where the groups are no whole blocks of adjacent columns, where the bits
        are other ones, where offsets are added, and where the blocks of a symmetric format would need a zero point.
        """
        if bits != self._bits:
            return None
        found = self._read().in_order()
        columns, groups = self._shape[1], found.scales.shape[1]
        width = columns // groups
        length = columns if block is None else block
        middle = 1 << (bits - 1)
        fits = found.groups is None and width % length == 0 and (found.offsets is None or not found.offsets.any())
        if not fits or (symmetric and found.zeros is not None and bool((found.zeros != middle).any())):
            return None
        scales = found.scales[index].repeat_interleave(width // length, -1)
        if found.zeros is None:
            zeros = torch.full(scales.shape, middle, dtype=torch.uint8)
        else:
            zeros = found.zeros[index].repeat_interleave(width // length, -1)
        return found.integers[index].unflatten(-1, (-1, length)), scales, zeros


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return uint8 [..., n · 32 / bits] of int32 words [..., n], the lowest bits of a word first."""
    shifts = torch.arange(0, WORD, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)
