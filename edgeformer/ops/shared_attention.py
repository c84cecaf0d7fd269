"""Attention of a layer without keys and values of its own to those that an earlier layer returned."""

import torch
from torch import Tensor

from edgeformer.ops.group_query_attention import Scoring, attend
from edgeformer.ops.rotary_embedding import rotate
from edgeformer.ops.token_positions import new_positions


@torch.library.custom_op("edgeformer::shared_attention", mutates_args=())
def shared_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    attention_bias: Tensor | None = None,
    sinks: Tensor | None = None,
    rotary_interleaved: bool = False,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Return softmax(cap(q·kᵀ·scale) + bias)·v, [B, S, H·D]; nothing is written.

    query           [B, S, H·D]; query head h reads key/value head h // (H / K)
    key, value      [B, K, C, D] with C ≥ T: the present of the earlier layer, the new tokens in it, keys rotated; only
                    the valid prefix of each row is read
    attention_mask  int64 [B, T], ones then zeros; see `token_positions`
    cos, sin        [C, R/2]: rotate the query by its positions first

    The other arguments are those of `group_query_attention`, which is causal here. Raises ValueError if key and value
    have fewer than T positions. Source: arXiv 2405.12981, section 2.
    """
    total = attention_mask.shape[1]
    if key.shape[2] < total:
        raise ValueError(f"the earlier layer holds {key.shape[2]} positions but attention_mask has {total}")
    q = query.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # [B, H, S, D]
    positions = new_positions(attention_mask, query.shape[1])  # [B, S]
    if cos is not None and sin is not None:
        q = rotate(q, cos[positions].unsqueeze(1), sin[positions].unsqueeze(1), rotary_interleaved)
    rule = Scoring(scale, attention_bias, sinks, window, softcap)
    output, _ = attend(q, key[:, :, :total], value[:, :, :total], attention_mask, positions, rule)
    return output.transpose(1, 2).flatten(-2)


@shared_attention.register_fake
def _(query: Tensor, *others: object) -> Tensor:
    return torch.empty_like(query)
