"""Self-attention over a cache."""

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import AttentionConfig
from edgeformer.layers.position import RotaryTable

Cache = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [B, K, tokens, D]."""


class Attention(nn.Module):
    """Projections around `ops.group_query_attention`, with queries and keys rotated where the config says so."""

    def __init__(self, config: AttentionConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        self.query = nn.Linear(hidden_size, width, bias=config.qkv_bias, dtype=dtype)
        self.key = nn.Linear(hidden_size, kv_width, bias=config.qkv_bias, dtype=dtype)
        self.value = nn.Linear(hidden_size, kv_width, bias=config.qkv_bias, dtype=dtype)
        self.output = nn.Linear(width, hidden_size, bias=config.output_bias, dtype=dtype)

    def forward(
        self, x: Tensor, attention_mask: Tensor, past: Cache, positions: Tensor, rotary: RotaryTable | None
    ) -> tuple[Tensor, Cache]:
        """x [B, S, E], attention_mask [B, T], past [B, K, P, D], positions [B, S] → [B, S, E], present [B, K, T, D]."""
        config = self.config
        query, key, value = self.query(x), self.key(x), self.value(x)
        interleaved = False
        if rotary is not None and config.rotary is not None:
            interleaved = config.rotary.interleaved
            tables = rotary.cos, rotary.sin
            query = ops.rotary_embedding(query, positions, *tables, config.num_heads, interleaved)
            key = ops.rotary_embedding(key, positions, *tables, config.num_kv_heads, interleaved)
        output, present_key, present_value = ops.group_query_attention(
            query, key, value, *past, attention_mask, None, None,
            config.num_heads, config.num_kv_heads, config.scale, interleaved,
        )  # fmt: skip
        return self.output(output), (present_key, present_value)
