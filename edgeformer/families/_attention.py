"""Multi-head attention of GPT-2 and similar models."""

from dataclasses import replace
from typing import Any

from edgeformer.config import AttentionConfig
from edgeformer.errors import ConfigError


def multi_head(hidden_size: int, num_heads: int, *, bias: bool, **otherwise: Any) -> AttentionConfig:
    """Return multi-head attention whose heads divide the hidden size.

    bias: of all four projections. otherwise: fields of AttentionConfig that differ. Raises ConfigError if num_heads
    does not divide hidden_size.
    """
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
