"""Rotary position embedding."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::rotary_embedding", mutates_args=())
def rotary_embedding(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, num_heads: int, interleaved: bool
) -> Tensor:
    """Rotate pairs of elements of each head by the angles of their position: [B, S, H·D].

    x          [B, S, H·D]
    positions  int64 [B, S]
    cos, sin   [C, R/2], one row per position

    The first R elements of a head form pairs (a, b): element i with i + R/2, or 2i with 2i + 1 if interleaved.
    a' = a·cos − b·sin and b' = b·cos + a·sin; the elements from R on are not changed. Source: arXiv 2104.09864.
    """
    heads = x.unflatten(-1, (num_heads, -1))  # [B, S, H, D]
    rotated = rotate(heads, cos[positions].unsqueeze(2), sin[positions].unsqueeze(2), interleaved)
    return rotated.flatten(-2)


@rotary_embedding.register_fake
def _(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, num_heads: int, interleaved: bool) -> Tensor:
    return torch.empty_like(x)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the leading R elements of x [..., D]; cos and sin [..., R/2] broadcast over x's other dimensions."""
    half = cos.shape[-1]
    leading, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = leading[..., 0::2], leading[..., 1::2]
    else:
        a, b = leading[..., :half], leading[..., half:]
    pair = (a * cos - b * sin, b * cos + a * sin)
    rotated = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((rotated, rest), -1)
