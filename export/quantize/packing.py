"""Pack integers into bytes, two 4-bit integers per byte with the first in the low half.

onnxruntime's MatMulNBits and ONNX's own 4-bit tensors have this layout.
"""

import torch
from torch import Tensor

from edgeformer.quantization import Bits


def pack(integers: Tensor, bits: Bits) -> Tensor:
    """Pack uint8 [..., n] into uint8 [..., ⌈n · bits / 8⌉]; the last half byte of an odd n is 0."""
    if bits == 8:
        return integers.contiguous()
    if integers.shape[-1] % 2:
        integers = torch.nn.functional.pad(integers, (0, 1))
    return integers[..., ::2] | (integers[..., 1::2] << 4)


def unpack(packed: Tensor, bits: Bits, length: int) -> Tensor:
    """Undo `pack`: return uint8 [..., length]."""
    if bits == 8:
        return packed
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)[..., :length]
