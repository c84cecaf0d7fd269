"""Counts of the weights of blocks: all of them, and those that a token is multiplied with (its products)."""

from collections import Counter
from collections.abc import Iterable

from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    CrossAttentionConfig,
    DeltaNetConfig,
    DisentangledConfig,
    ExpertsConfig,
    FeedForwardConfig,
    NormConfig,
    RecurrentConfig,
    ShawConfig,
    ShortConvConfig,
    StateSpaceConfig,
    TransformerXLConfig,
)
from edgeformer.config.feed_forward import BOUNDS


def norm_weights(norm: NormConfig | None, size: int) -> int:
    """Return the number of weights of a norm over vectors of a size."""
    return 0 if norm is None else norm.weights(size)


def block_norm_weights(block: BlockConfig, hidden: int) -> int:
    """Return the number of weights of the norms around the branches of a block."""
    branches = 1 + (block.cross_attention is not None) + (block.feed_forward is not None)
    count = 0
    if block.norm_placement != "output":
        count += branches - block.branch_norms - (block.residual == "parallel_one_norm") - (not block.attention_norm)
    if block.norm_placement in ("output", "sandwich"):
        count += branches
    return count * norm_weights(block.norm, hidden)


def attention_weights(attention: AttentionConfig, hidden: int) -> int:
    """Return the number of weights of self-attention, with its biases, norms and relations."""
    head_dim, qkv_bias = attention.head_dim, attention.qkv_bias
    width, kv_width = attention.num_heads * head_dim, attention.num_kv_heads * head_dim
    own, values = attention.shares is None, not attention.value_from_key
    count = _projections(attention, hidden)
    if attention.latent is not None:
        latent = attention.latent
        ranks = latent.rank + (latent.query_rank or 0)
        count += norm_weights(latent.norm, ranks) + (ranks + latent.shared_dim) * latent.bias
    count += (width + kv_width * (values + attention.key_bias) * own) * qkv_bias + hidden * attention.output_bias
    count += attention.num_heads * attention.sinks + attention.output_size * qkv_bias * attention.output_gate
    count += 3 * width * (hidden + qkv_bias) * attention.global_projections
    count += norm_weights(attention.value_norm, head_dim)
    projections = 2 + (1 + values) * own
    count += len(BOUNDS) * projections * bool(attention.clamped)
    if attention.qk_norm is not None:
        norm, over = attention.qk_norm.norm, attention.qk_norm.over
        keys = norm_weights(norm, head_dim if over == "head" else kv_width) * own
        count += norm_weights(norm, head_dim if over == "head" else width) + keys
    match attention.relative:
        case ShawConfig(max_distance=reach, values=values):
            count += (2 * reach + 1) * head_dim * (1 + values)
        case TransformerXLConfig():
            count += hidden * width + 2 * width
        case DisentangledConfig(shared_projections=False) as relations:
            count += width * (hidden + relations.key_bias) * relations.content_to_position
            count += width * (hidden + 1) * relations.position_to_content
    return count


def _projections(attention: AttentionConfig, hidden: int) -> int:
    """Return the number of weights in the matrices of queries, keys, values, gate and output, without biases."""
    heads, head_dim, latent = attention.num_heads, attention.head_dim, attention.latent
    gate = hidden * attention.output_size * attention.output_gate
    if latent is None:
        kv_heads = attention.num_kv_heads * (2 - attention.value_from_key) * (attention.shares is None)
        return hidden * head_dim * (2 * heads + kv_heads) + gate
    down = hidden * (latent.rank + latent.shared_dim + (latent.query_rank or 0))
    keys_values = latent.rank * heads * (head_dim - latent.shared_dim + latent.value_dim)
    queries = (latent.query_rank or hidden) * heads * head_dim
    return down + queries + keys_values + gate + hidden * attention.output_size


def cross_attention_weights(attention: CrossAttentionConfig, hidden: int, source_size: int) -> int:
    """Return the number of weights of attention to states of `source_size`."""
    width, kv_width = attention.num_heads * attention.head_dim, attention.kv_heads * attention.head_dim
    biases = (width + kv_width * (1 + attention.key_bias)) * attention.qkv_bias + hidden * attention.output_bias
    return 2 * (width * hidden + kv_width * source_size) + biases


def recurrent_weights(recurrent: RecurrentConfig, hidden: int) -> int:
    """Return the number of weights of a recurrent layer."""
    match recurrent:
        case ShortConvConfig(bias=bias):
            biases, vectors = (bias, bias, bias), 0
        case DeltaNetConfig():
            biases, vectors = (False, False, False), 2 * recurrent.num_value_heads + recurrent.value_dim
        case StateSpaceConfig():
            biases = recurrent.input_bias, recurrent.conv_bias, recurrent.output_bias
            vectors = 3 * recurrent.num_heads + recurrent.inner_size * (recurrent.norm_eps is not None)
    sizes = recurrent.projected_size, recurrent.channels, hidden
    count = sum(size * bias for size, bias in zip(sizes, biases, strict=True)) + vectors
    return _recurrent_products(recurrent, hidden) + recurrent.channels * recurrent.kernel_size + count


def _recurrent_products(recurrent: RecurrentConfig, hidden: int) -> int:
    return hidden * (recurrent.projected_size + recurrent.inner_size)


def feed_forward_weights(feed_forward: FeedForwardConfig | ExpertsConfig | None, hidden: int) -> int:
    """Return the number of weights of a feed-forward network, or of all experts of a mixture."""
    if feed_forward is None:
        return 0
    if isinstance(feed_forward, ExpertsConfig):
        return _experts(feed_forward, hidden)
    inner, inwards = feed_forward.intermediate_size, 1 + feed_forward.gated
    bounds = len(BOUNDS) * (inwards + 1) * bool(feed_forward.clamped)
    return (
        (inwards + 1) * hidden * inner + inwards * inner * feed_forward.bias + hidden * feed_forward.down_bias + bounds
    )


def _experts(config: ExpertsConfig, hidden: int) -> int:
    router, experts = config.router, config.num_experts
    count = experts * (hidden + router.bias + router.choice_bias + router.expert_scale) + norm_weights(
        router.norm, hidden
    )
    count += experts * feed_forward_weights(config.expert, hidden) + hidden * config.shared_gate
    if config.shared is not None:
        count += feed_forward_weights(config.shared, hidden)
    return count + 4 * norm_weights(config.branch_norm, hidden)


def residual_weights(block: BlockConfig, hidden: int) -> int:
    """Return the number of weights of what a block adds to a plain residual stream."""
    altup, count = block.altup, _residual_products(block, hidden) + block.output_scale
    count += 0 if block.laurel_rank is None else norm_weights(block.norm, hidden)
    count += hidden * (1 + (block.feed_forward is not None)) if block.layer_scale else 0
    count += 0 if block.layer_input is None else norm_weights(block.layer_input.norm, hidden)
    return count + (0 if altup is None else norm_weights(block.norm, hidden) + hidden * altup.output_scale)


def _residual_products(block: BlockConfig, hidden: int) -> int:
    altup, count = block.altup, 0
    count += 0 if block.laurel_rank is None else 2 * hidden * block.laurel_rank
    count += 0 if block.layer_input is None else 2 * hidden * block.layer_input.size
    return count + (0 if altup is None else altup.streams * (hidden + altup.streams**2 + altup.streams))


def thin_weights(blocks: Iterable[BlockConfig], hidden: int) -> Counter[str]:
    """Return the number of parameters of blocks with a bottleneck, by part of the model."""
    counts: Counter[str] = Counter()
    for block in blocks:
        bottleneck, attention = block.bottleneck, block.attention
        assert bottleneck is not None and attention is not None
        size, inwards = bottleneck.size, 1 + (bottleneck.attention == "shared")
        values = attention.num_kv_heads * attention.head_dim * (hidden - size) * (inwards - 1)
        counts["attention"] += attention_weights(attention, size) + values
        counts["feed_forward"] += bottleneck.feed_forwards * feed_forward_weights(block.feed_forward, size)
        counts["norms"] += norm_weights(block.norm, size * (inwards + 1 + bottleneck.feed_forwards) + hidden)
        counts["residual"] += inwards * size * (hidden + 1) + hidden * (size + 1)
    return counts


def _thin_products(block: BlockConfig, hidden: int) -> int:
    """Return the number of weights that a token is multiplied with in a block with a bottleneck."""
    bottleneck, attention = block.bottleneck, block.attention
    assert bottleneck is not None and attention is not None
    size, inwards = bottleneck.size, 1 + (bottleneck.attention == "shared")
    values = attention.num_kv_heads * attention.head_dim * (hidden - size) * (inwards - 1)
    networks = bottleneck.feed_forwards * feed_forward_products(block.feed_forward, size)
    return _projections(attention, size) + values + networks + (inwards + 1) * size * hidden


def block_products(block: BlockConfig, hidden: int) -> int:
    """Return the number of weights that a token is multiplied with in a block."""
    if block.bottleneck is not None:
        return _thin_products(block, hidden)
    attention, across = block.attention, block.cross_attention
    count = 0 if block.recurrent is None else _recurrent_products(block.recurrent, hidden)
    if attention is not None:
        width = attention.num_heads * attention.head_dim
        count += _projections(attention, hidden)
        count += 2 * hidden * width * attention.global_projections  # keys and values; there are only few queries
    if across is not None:
        count += 2 * hidden * across.num_heads * across.head_dim
    return count + feed_forward_products(block.feed_forward, hidden) + _residual_products(block, hidden)


def feed_forward_products(feed_forward: FeedForwardConfig | ExpertsConfig | None, hidden: int) -> int:
    """Return the number of weights that a token is multiplied with in a feed-forward network."""
    if feed_forward is None:
        return 0
    if isinstance(feed_forward, FeedForwardConfig):
        return (2 + feed_forward.gated) * hidden * feed_forward.intermediate_size
    count = hidden * (feed_forward.num_experts + feed_forward.shared_gate)
    count += feed_forward.experts_per_token * feed_forward_products(feed_forward.expert, hidden)
    return count + (0 if feed_forward.shared is None else feed_forward_products(feed_forward.shared, hidden))
