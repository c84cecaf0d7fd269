"""Multi-head attention as GPT-2 and its kin have it."""

from dataclasses import replace
from typing import Any

from edgeformer.config import AttentionConfig
from edgeformer.errors import ConfigError


def multi_head(hidden_size: int, num_heads: int, *, bias: bool, **otherwise: Any) -> AttentionConfig:
    """Heads that divide the hidden size, each with a key and value of its own; otherwise: fields that differ."""
    if num_heads <= 0 or hidden_size % num_heads:
        raise ConfigError(f"config.json has {num_heads} heads, which do not divide the hidden size, {hidden_size}.")
    head_dim = hidden_size // num_heads
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        qkv_bias=bias,
        output_bias=bias,
        rotary=None,
    )
    return replace(attention, **otherwise)
