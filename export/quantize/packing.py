"""Pack integers of less than a byte into bytes, and unpack them.

Integers of 4 bits are two in a byte, as onnxruntime's MatMulNBits reads them. It reads 4 and 8 bits; integers of 3, 5
and 6 bits are the highest bits of those (`WeightFormat.product_bits`), whose lowest ones are 0. A file lacks these: of
each group of bytes, the first ones keep their bits, and have those of the others in the place of the unused ones.

    bits   unused in a byte   bytes of a group   stored
    3      0 and 4            4                  3
    5      0 to 2             8                  5
    6      0 and 1            4                  3

A graph computes the bytes again when it is loaded (passes/storage/packed_integers.py).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeformer.manifest.quantization import Bits


@dataclass(frozen=True)
class Packing:
    """The places of the bits of a group of bytes in fewer bytes.

    Attributes:
        kept: the bits of a stored byte that are its own.
        stored: bytes of a group that are stored.
        spread: of each other byte, where its bits are: a stored byte, bits of it, and by how many places they move up.
    """

    kept: int
    stored: int
    spread: tuple[tuple[tuple[int, int, int], ...], ...]

    @property
    def group(self) -> int:
        """The bytes of a group."""
        return self.stored + len(self.spread)


PACKINGS: dict[Bits, Packing] = {
    3: Packing(0xEE, 3, (((0, 0x11, 1), (1, 0x11, 2), (2, 0x11, 3)),)),
    5: Packing(
        0xF8,
        5,
        (
            ((0, 0b111, 5), (3, 0b011, 3)),
            ((1, 0b111, 5), (4, 0b011, 3)),
            ((2, 0b111, 5), (3, 0b100, 2), (4, 0b100, 1)),
        ),
    ),
    6: Packing(0xFC, 3, (((0, 0b11, 6), (1, 0b11, 4), (2, 0b11, 2)),)),
}
"""By the bits of an integer."""


def pack(integers: Tensor, bits: int) -> Tensor:
    """Pack uint8 [..., n] of 4 or 8 bits into uint8 [..., ⌈n · bits / 8⌉]; the last half byte of an odd n is 0.

    Of two 4-bit integers the first is in the low half, as in onnxruntime's MatMulNBits and ONNX's own 4-bit tensors.
    """
    if bits == 8:
        return integers.contiguous()
    if integers.shape[-1] % 2:
        integers = torch.nn.functional.pad(integers, (0, 1))
    return integers[..., ::2] | (integers[..., 1::2] << 4)


def unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    """Undo `pack`: return uint8 [..., length]."""
    if bits == 8:
        return packed
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)[..., :length]


def pack_groups(content: Tensor, packing: Packing) -> Tensor:
    """Pack bytes [..., n], whose unused bits are 0, into [..., stored, n / group].

    The bytes of a group are n / group apart.
    """
    groups = content.unflatten(-1, (packing.group, -1))
    stored = groups[..., : packing.stored, :].clone()
    for place, parts in enumerate(packing.spread, start=packing.stored):
        for of, mask, up in parts:
            stored[..., of, :] |= (groups[..., place, :] >> up) & mask
    return stored


def unpack_groups(stored: Tensor, packing: Packing) -> Tensor:
    """Undo `pack_groups`: return bytes [..., n]."""
    others = [
        sum(((stored[..., of, :] & mask) << up for of, mask, up in parts), torch.zeros_like(stored[..., 0, :]))
        for parts in packing.spread
    ]
    return torch.cat((stored & packing.kept, torch.stack(others, -2)), -2).flatten(-2)
