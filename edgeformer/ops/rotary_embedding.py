"""Rotary position embedding."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::rotary_embedding", mutates_args=())
def rotary_embedding(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, num_heads: int, interleaved: bool
) -> Tensor:
    """Turn pairs of elements of each head by the angle of their position.

    x [B, S, H·D], positions int64 [B, S], cos and sin [C, R/2] (one row a position) → [B, S, H·D].
    The first R elements of a head form pairs (a, b): element i with i + R/2, or 2i with 2i + 1 where interleaved.
    a' = a·cos − b·sin and b' = b·cos + a·sin; elements from R on pass. Source: arXiv 2104.09864.
    """
    heads = x.unflatten(-1, (num_heads, -1))  # [B, S, H, D]
    rotated = rotate(heads, cos[positions].unsqueeze(2), sin[positions].unsqueeze(2), interleaved)
    return rotated.flatten(-2)


@rotary_embedding.register_fake
def _(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, num_heads: int, interleaved: bool) -> Tensor:
    return torch.empty_like(x)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the leading 2·cos.shape[-1] elements of x [..., D]; cos and sin broadcast over x's other dimensions."""
    half = cos.shape[-1]
    turning, passing = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = turning[..., :half], turning[..., half:]
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((turned, passing), -1)
