"""What a model costs, computed from its config alone: parameters, bytes, cache, arithmetic."""

from dataclasses import dataclass

from edgeformer.config import BlockConfig, ModelConfig
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


def account(config: ModelConfig, precision: Precision = "fp32") -> Account:
    """Count what a model costs."""
    hidden = config.hidden_size
    embedding = config.vocab_size * hidden
    attention = sum(_attention_parameters(block, hidden) for block in config.blocks)
    feed_forward = sum(_feed_forward_parameters(block, hidden) for block in config.blocks)
    norms = hidden * (2 * len(config.blocks) + 1)
    parts = {
        "embedding": embedding,
        "attention": attention,
        "feed_forward": feed_forward,
        "norms": norms,
        "head": 0 if config.tied_head else embedding,
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


def _attention_parameters(block: BlockConfig, hidden: int) -> int:
    attention = block.attention
    width, kv_width = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    biases = (width + 2 * kv_width) * attention.qkv_bias + hidden * attention.output_bias
    return 2 * hidden * (width + kv_width) + biases


def _feed_forward_parameters(block: BlockConfig, hidden: int) -> int:
    inner = block.feed_forward.intermediate_size
    return 3 * hidden * inner + (2 * inner + hidden) * block.feed_forward.bias


def _product_elements(block: BlockConfig, hidden: int) -> int:
    """Weights that a token is multiplied with in one block: matrices without biases."""
    attention = block.attention
    kv = 2 * hidden * (attention.num_heads + attention.num_kv_heads) * attention.head_dim
    return kv + 3 * hidden * block.feed_forward.intermediate_size
