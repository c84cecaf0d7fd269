"""Grouped-query attention with a key/value cache."""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeformer.ops.rotary_embedding import rotate
from edgeformer.ops.token_positions import new_positions


@dataclass(frozen=True)
class Scoring:
    """How attention scores keys and which of them a query sees; see `group_query_attention`."""

    scale: float
    bias: Tensor | None
    sinks: Tensor | None
    window: int
    softcap: float
    causal: bool = True


def attend(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, positions: Tensor, rule: Scoring
) -> tuple[Tensor, Tensor]:
    """Return the output [B, H, S, D] and the weights [B, H, S, T] of softmax(cap(q·kᵀ·scale) + bias)·v.

    query [B, H, S, D] stands at positions int64 [B, S]; key and value are [B, K, T, D], attention_mask int64 [B, T].
    """
    columns = torch.arange(key.shape[2], device=query.device)
    # Values beyond a row's valid tokens may be NaN or infinite, and 0 · NaN is NaN.
    readable_value = value.masked_fill((attention_mask == 0)[:, None, :, None], 0)
    grouped_query = query.unflatten(1, (key.shape[1], -1))  # [B, K, H/K, S, D]
    scores = grouped_query @ key.unsqueeze(2).transpose(-1, -2) * rule.scale  # [B, K, H/K, S, T]
    if rule.softcap:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.flatten(1, 2)  # [B, H, S, T]
    if rule.bias is not None:
        scores = scores + rule.bias
    distances = positions[:, None, :, None] - columns  # [B, 1, S, T]
    visible = distances >= 0 if rule.causal else (attention_mask != 0)[:, None, None, :]
    if rule.window:
        visible = visible & (distances < rule.window)
    scores = scores.masked_fill(~visible, float("-inf"))
    if rule.sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = rule.sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    grouped = weights.unflatten(1, (key.shape[1], -1))  # [B, K, H/K, S, T]
    return (grouped @ readable_value.unsqueeze(2)).flatten(1, 2), weights


@torch.library.custom_op("edgeformer::group_query_attention", mutates_args=())
def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    attention_mask: Tensor,
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    attention_bias: Tensor | None = None,
    sinks: Tensor | None = None,
    value_relations: Tensor | None = None,
    rotary_interleaved: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    causal: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the attention of new tokens to the cache and to themselves: softmax(cap(q·kᵀ·scale) + bias)·v.

    query           [B, S, H·D], or [B, S, (H + 2K)·D] with key and value packed behind it (both are then None)
    key, value      [B, S, K·D]; query head h reads key/value head h // (H / K)
    past_key/value  [B, K, P, D] with P ≤ T; only the valid prefix of each row is read, the rest may hold anything;
                    None: nothing precedes the new tokens
    attention_mask  int64 [B, T], ones then zeros, T = tokens in all; see `token_positions`
    cos, sin        [C, R/2]: rotate query and key by their positions first; None: they are used as they are
    attention_bias  [B or 1, H or 1, S, T], added to the scores; −inf hides a key
    sinks           [H]: a score per head that takes part in the softmax and has no value (arXiv 2309.17453)
    value_relations [2k + 1, D]: row clip(j − i, −k, k) + k is added to value j for query i (arXiv 1803.02155)
    window          a query sees no keys before the last `window`, itself included; 0: all
    softcap         cap(s) = softcap · tanh(s / softcap); 0: s itself
    causal          a query sees the keys up to its own position; otherwise all valid ones

    Returns the output [B, S, H·D] and the present key and value [B, K, T, D]: the past with the new tokens written at
    their positions. Raises ValueError if the past is longer than attention_mask. Source: arXiv 2305.13245.
    """
    if key is None or value is None:
        head_dim = query.shape[-1] // (num_heads + 2 * num_kv_heads)
        query, key, value = query.split([heads * head_dim for heads in (num_heads, num_kv_heads, num_kv_heads)], -1)
    batch, _, width = query.shape
    head_dim, total = width // num_heads, attention_mask.shape[1]
    if past_key is None or past_value is None:
        past_key = past_value = key.new_empty(batch, num_kv_heads, 0, head_dim)
    past_length = past_key.shape[2]
    if past_length > total:
        raise ValueError(f"the past holds {past_length} positions but attention_mask only {total}")
    q = query.unflatten(-1, (num_heads, head_dim)).transpose(1, 2)  # [B, H, S, D]
    k = key.unflatten(-1, (num_kv_heads, head_dim)).transpose(1, 2)  # [B, K, S, D]
    v = value.unflatten(-1, (num_kv_heads, head_dim)).transpose(1, 2)  # [B, K, S, D]
    positions = new_positions(attention_mask, query.shape[1])  # [B, S]
    if cos is not None and sin is not None:
        angles = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)  # [B, 1, S, R/2]
        q, k = rotate(q, *angles, rotary_interleaved), rotate(k, *angles, rotary_interleaved)

    slots = positions[:, None, :, None].expand_as(k)  # [B, K, S, D]
    new = past_key.new_zeros(batch, num_kv_heads, total - past_length, head_dim)
    present_key = torch.cat((past_key, new), 2).scatter(2, slots, k)  # [B, K, T, D]
    present_value = torch.cat((past_value, new), 2).scatter(2, slots, v)

    rule = Scoring(scale, attention_bias, sinks, window, softcap, causal)
    output, weights = attend(q, present_key, present_value, attention_mask, positions, rule)
    if value_relations is not None:
        reach = (value_relations.shape[0] - 1) // 2
        relation = torch.arange(total, device=query.device) - positions[:, :, None]  # [B, S, T]
        seen = value_relations[relation.clamp(-reach, reach) + reach]  # [B, S, T, D]
        output = output + torch.einsum("bhst,bstd->bhsd", weights, seen)
    return output.transpose(1, 2).flatten(-2), present_key, present_value


@group_query_attention.register_fake
def _(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    attention_mask: Tensor,
    num_heads: int,
    num_kv_heads: int,
    *others: object,
) -> tuple[Tensor, Tensor, Tensor]:
    head_dim = query.shape[-1] // (num_heads if key is not None else num_heads + 2 * num_kv_heads)
    present = (query.shape[0], num_kv_heads, attention_mask.shape[1], head_dim)
    output = query.new_empty(*query.shape[:-1], num_heads * head_dim)
    return output, query.new_empty(present), query.new_empty(present)
