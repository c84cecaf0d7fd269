"""Cross-attention: attention to keys and values of an encoder, which are computed once per source."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::cross_attention", mutates_args=())
def cross_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scale: float, softcap: float = 0.0
) -> Tensor:
    """Return softmax(cap(q·kᵀ·scale))·v, [B, S, H·D]; every query sees every valid key.

    query           [B, S, H·D]
    key, value      [B, H, T, D], finite everywhere
    attention_mask  int64 [B, T], 0 where the source has padding
    softcap         cap(s) = softcap · tanh(s / softcap); 0: s itself

    Source: arXiv 1706.03762, section 3.2.3.
    """
    heads = query.unflatten(-1, (key.shape[1], -1)).transpose(1, 2)  # [B, H, S, D]
    scores = heads @ key.transpose(-1, -2) * scale  # [B, H, S, T]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill((attention_mask == 0)[:, None, None, :], float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)


@cross_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scale: float, softcap: float = 0.0) -> Tensor:
    return torch.empty_like(query)
