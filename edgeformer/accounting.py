"""What a model costs, computed from its config alone: parameters, bytes, cache, arithmetic."""

from dataclasses import dataclass

from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    NormConfig,
    ShawConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from edgeformer.manifest import Precision

ELEMENT_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Account:
    """Costs of one model in one precision.

    parameters: each counted once, a tied head not again. bytes: of the parameters, by part. cache_bytes_per_token: keys
    and values of all layers. flops_per_token: multiplications and additions of the matrix products of one decode step,
    attention to earlier tokens apart; attention_flops_per_token: those to add for each token already in the cache.
    """

    parameters: int
    bytes: dict[str, int]
    cache_bytes_per_token: int
    flops_per_token: int
    attention_flops_per_token: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(self.bytes.values())


def account(config: DecoderConfig, precision: Precision = "fp32") -> Account:
    """Count what a model costs."""
    hidden = config.hidden_size
    embedding = config.vocab_size * hidden
    positions = config.position_embedding
    rows = positions.rows if isinstance(positions, LearnedPositions) else 0
    norms = sum(_block_norms(block, hidden) for block in config.blocks)
    norms += sum(_norm(norm, hidden) for norm in (config.final_norm, config.embedding_norm) if norm)
    tables = {
        (block.attention.relative, block.attention.num_heads)
        for block in config.blocks
        if isinstance(block.attention.relative, T5BiasConfig)
    }
    parts = {
        "embedding": embedding + rows * hidden,
        "attention": sum(_attention(block.attention, hidden) for block in config.blocks)
        + sum(relative.num_buckets * heads for relative, heads in tables),
        "feed_forward": sum(_feed_forward(block.feed_forward, hidden) for block in config.blocks),
        "norms": norms,
        "head": 0 if config.tied_head else embedding + config.vocab_size * config.head_bias,
    }
    size = ELEMENT_BYTES[precision]
    products = sum(_product_elements(block, hidden) for block in config.blocks) + embedding
    scores = sum(block.attention.num_heads * block.attention.head_dim for block in config.blocks)
    return Account(
        parameters=sum(parts.values()),
        bytes={part: count * size for part, count in parts.items()},
        cache_bytes_per_token=config.cache_geometry.elements(1, 1) * size,
        flops_per_token=2 * products,
        attention_flops_per_token=2 * 2 * scores,
    )


def _norm(norm: NormConfig, size: int) -> int:
    statistics = 2 if norm.kind == "batch_norm" else 0
    return size * (norm.weight + norm.bias + statistics)


def _block_norms(block: BlockConfig, hidden: int) -> int:
    count = 4 if block.norm_placement == "sandwich" else 1 if block.residual == "parallel_one_norm" else 2
    return count * _norm(block.norm, hidden)


def _attention(attention: AttentionConfig, hidden: int) -> int:
    head_dim = attention.head_dim
    width, kv_width = attention.num_heads * head_dim, attention.num_kv_heads * head_dim
    count = 2 * hidden * (width + kv_width)
    count += (width + 2 * kv_width) * attention.qkv_bias + hidden * attention.output_bias
    count += attention.num_heads * attention.sinks
    if attention.qk_norm is not None:
        norm, over = attention.qk_norm.norm, attention.qk_norm.over
        count += 2 * _norm(norm, head_dim) if over == "head" else _norm(norm, width) + _norm(norm, kv_width)
    match attention.relative:
        case ShawConfig(max_distance=reach, values=values):
            count += (2 * reach + 1) * head_dim * (1 + values)
        case TransformerXLConfig():
            count += hidden * width + 2 * width
    return count


def _feed_forward(feed_forward: FeedForwardConfig, hidden: int) -> int:
    inner, inwards = feed_forward.intermediate_size, 1 + feed_forward.gated
    return (inwards + 1) * hidden * inner + (inwards * inner + hidden) * feed_forward.bias


def _product_elements(block: BlockConfig, hidden: int) -> int:
    """Weights that a token is multiplied with in one block: matrices without biases."""
    attention, feed_forward = block.attention, block.feed_forward
    projections = 2 * hidden * (attention.num_heads + attention.num_kv_heads) * attention.head_dim
    return projections + (2 + feed_forward.gated) * hidden * feed_forward.intermediate_size
