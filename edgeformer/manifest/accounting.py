"""Costs of a model, computed from its config: parameters, bytes, bytes of the cache, FLOPs."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgeformer.config import (
    AttentionConfig,
    AttentionPooler,
    BlockConfig,
    CrossAttentionConfig,
    DecoderConfig,
    DeltaNetConfig,
    DisentangledConfig,
    EncoderConfig,
    ExpertsConfig,
    FeedForwardConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    PictureTextConfig,
    PixelShuffleProjector,
    RecurrentConfig,
    ShawConfig,
    ShortConvConfig,
    StackConfig,
    StateSpaceConfig,
    T5BiasConfig,
    TokenPooler,
    TransformerXLConfig,
    VisionConfig,
)
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Arithmetic

ELEMENT_BYTES: dict[Arithmetic, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of one element."""


def cache_element_bytes(manifest: Manifest) -> int:
    """Return the bytes of one element in the cache of a bundle."""
    return ELEMENT_BYTES[manifest.plan.arithmetic] if manifest.cache_scales is None else 1


@dataclass(frozen=True, kw_only=True)
class SourceAccount:
    """Costs of an encoder-decoder for every token of the source.

    Attributes:
        cache_bytes_per_token: bytes of the cross-attention keys and values of all layers of the decoder.
        flops_per_token: FLOPs of the encoder and of those keys and values, without attention.
        attention_flops_per_token: FLOPs of the encoder's attention, to multiply by the tokens of the source.
        step_flops_per_token: FLOPs of cross-attention in one decode step.
    """

    cache_bytes_per_token: int
    flops_per_token: int
    attention_flops_per_token: int
    step_flops_per_token: int


@dataclass(frozen=True, kw_only=True)
class Account:
    """Costs of one model in one precision; those of an encoder-decoder are the decoder's, apart from `source`.

    Attributes:
        parameters: number of parameters, with a tied head or a shared embedding counted once.
        bytes: bytes of the parameters by part; an audio stem belongs to the embedding.
        cache_bytes_per_token: bytes of keys and values of all layers; 0 for an encoder.
        state_bytes: bytes of the states of fixed size of all layers, for each text.
        flops_per_token: multiplications and additions of the matrix products of one decode step, or of one token of an
            encoder. Attention to other tokens, and what is computed once per text, are left out.
        attention_flops_per_token: FLOPs to add for each token in the cache, or in the text of an encoder.
        source: costs per token of the source of an encoder-decoder.
    """

    parameters: int
    bytes: dict[str, int]
    cache_bytes_per_token: int
    flops_per_token: int
    attention_flops_per_token: int
    state_bytes: int = 0
    source: SourceAccount | None = None

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all parameters."""
        return sum(self.bytes.values())


def account(config: ModelConfig, precision: Arithmetic = "fp32") -> Account:
    """Return the costs of a model in a precision."""
    parts, size, stack = _parts(config), ELEMENT_BYTES[precision], config.output_stack
    return Account(
        parameters=sum(parts.values()),
        bytes={part: count * size for part, count in parts.items()},
        cache_bytes_per_token=stack.cache_geometry.elements_per_token * size,
        flops_per_token=2 * _products(stack),
        attention_flops_per_token=2 * _scores(stack),
        state_bytes=stack.cache_geometry.size_in_bytes(size, 1, 0),
        source=_source(config.input_stack, stack, size),
    )


def _source(encoder: StackConfig, decoder: StackConfig, size: int) -> SourceAccount | None:
    """Return the costs of the source that a decoder reads by cross-attention; None without an encoder before it."""
    geometry, across = decoder.cross_geometry, decoder.blocks[0].cross_attention
    if encoder is decoder or geometry is None or across is None:
        return None
    width = geometry.elements_per_token // (2 * geometry.num_layers)
    # Every layer of the decoder projects each state of the encoder to keys and values, which its queries read.
    projections = 2 * geometry.num_layers * encoder.hidden_size * across.kv_heads * across.head_dim
    return SourceAccount(
        cache_bytes_per_token=geometry.elements(1, 1) * size,
        flops_per_token=2 * (_products(encoder) + projections),
        attention_flops_per_token=2 * _scores(encoder),
        step_flops_per_token=2 * 2 * geometry.num_layers * width,
    )


def last_token_flops(config: StackConfig) -> int:
    """Return the part of `flops_per_token` that follows the last attention.

    A prefill graph spends these on the last token only.
    """
    last, hidden = config.blocks[-1], config.hidden_size
    output = 0 if last.attention is None else hidden * last.attention.output_size
    return 2 * (output + _feed_forward_products(last.feed_forward, hidden) + _table(config))


def _parts(config: ModelConfig) -> dict[str, int]:
    """Return the number of parameters by part of the model: those of its stacks, each of which reads the one before."""
    counts: Counter[str] = Counter()
    source_size = 0
    for stack in config.stacks.values():
        counts.update(_stack_parts(stack, source_size))
        source_size = stack.hidden_size
    counts["embedding"] -= _table(config.output_stack) * config.shared_embedding
    return dict(counts)


def _stack_parts(config: StackConfig, source_size: int) -> dict[str, int]:
    hidden, width = config.hidden_size, config.embedding_width
    positions = config.position_embedding
    rows = positions.rows if isinstance(positions, LearnedPositions) else 0
    blocks = config.blocks[:1] if config.shared_blocks else config.blocks
    thin = [block for block in blocks if block.bottleneck is not None]
    blocks = tuple(block for block in blocks if block.bottleneck is None)
    attentions = [block.attention for block in blocks if block.attention is not None]
    norms = sum(_block_norms(block, hidden) for block in blocks)
    norms += _norm(config.final_norm, hidden) + _norm(config.embedding_norm, width)
    tables = {
        (attention.relative, attention.num_heads)
        for attention in attentions
        if isinstance(attention.relative, T5BiasConfig)
    }
    relations = {each.relative for each in attentions if isinstance(each.relative, DisentangledConfig)}
    norms += sum(_norm(each.norm, hidden) for each in relations)
    projection = 0 if config.embedding_size is None else hidden * (width + 1)
    stem = 0 if config.audio is None else _stem(config, 1) + 2 * hidden
    stem += _patch_stem(config)
    parts = {
        "embedding": _table(config)
        + (rows + config.token_types) * width
        + projection
        + _token_projection(config, bias=True)
        + stem
        + _per_layer_embedding(config)
        + _stream_projections(config),
        "attention": sum(_attention(attention, hidden) for attention in attentions)
        + sum(relative.num_buckets * heads for relative, heads in tables)
        + sum(2 * each.span * hidden for each in relations),
        "feed_forward": sum(_feed_forward(block.feed_forward, hidden) for block in blocks),
        "norms": norms,
        "head": HEADS[type(config)].weights(config),
    }
    for part, count in _thin(thin, hidden).items():
        parts[part] = parts.get(part, 0) + count
    residual = sum(_residual(block, hidden) for block in blocks)
    if residual:
        parts["residual"] = parts.get("residual", 0) + residual
    recurrent = [block.recurrent for block in blocks if block.recurrent is not None]
    if recurrent:
        parts["recurrent"] = sum(recurrent_weights(each, hidden) for each in recurrent)
    across = [block.cross_attention for block in blocks if block.cross_attention is not None]
    if across:
        parts["cross_attention"] = sum(_cross_attention(each, hidden, source_size) for each in across)
    return parts


def _table(config: StackConfig) -> int:
    return config.vocab_size * config.token_width


def _token_projection(config: StackConfig, bias: bool = False) -> int:
    """Return the number of weights of the layer that makes states of rows of the table of tokens."""
    projection = config.token_projection
    if projection is None:
        return 0
    return config.hidden_size * (projection.size * (3 if projection.trigrams else 1) + bias)


def _thin(blocks: Iterable[BlockConfig], hidden: int) -> Counter[str]:
    """Return the number of parameters of blocks with a bottleneck, by part of the model."""
    counts: Counter[str] = Counter()
    for block in blocks:
        bottleneck, attention = block.bottleneck, block.attention
        assert bottleneck is not None and attention is not None
        size, inwards = bottleneck.size, 1 + (bottleneck.attention == "shared")
        values = attention.num_kv_heads * attention.head_dim * (hidden - size) * (inwards - 1)
        counts["attention"] += _attention(attention, size) + values
        counts["feed_forward"] += bottleneck.feed_forwards * _feed_forward(block.feed_forward, size)
        counts["norms"] += _norm(block.norm, size * (inwards + 1 + bottleneck.feed_forwards) + hidden)
        counts["residual"] += inwards * size * (hidden + 1) + hidden * (size + 1)
    return counts


def _thin_products(block: BlockConfig, hidden: int) -> int:
    """Return the number of weights that a token is multiplied with in a block with a bottleneck."""
    bottleneck, attention = block.bottleneck, block.attention
    assert bottleneck is not None and attention is not None
    size, inwards = bottleneck.size, 1 + (bottleneck.attention == "shared")
    values = attention.num_kv_heads * attention.head_dim * (hidden - size) * (inwards - 1)
    networks = bottleneck.feed_forwards * _feed_forward_products(block.feed_forward, size)
    return _projections(attention, size) + values + networks + (inwards + 1) * size * hidden


def _per_layer_embedding(config: StackConfig) -> int:
    embedding = config.per_layer_embedding
    if embedding is None:
        return 0
    width = len(config.blocks) * embedding.size
    return (embedding.rows + config.hidden_size) * width + _norm(embedding.norm, embedding.size)


def _stream_projections(config: StackConfig) -> int:
    altup = config.blocks[0].altup
    return 0 if altup is None else 2 * (altup.streams - 1) * config.hidden_size**2


def _residual(block: BlockConfig, hidden: int) -> int:
    """Return the number of weights of what a block adds to a plain residual stream."""
    altup, count = block.altup, _residual_products(block, hidden) + block.output_scale
    count += 0 if block.laurel_rank is None else _norm(block.norm, hidden)
    count += hidden * (1 + (block.feed_forward is not None)) if block.layer_scale else 0
    count += 0 if block.layer_input is None else _norm(block.layer_input.norm, hidden)
    return count + (0 if altup is None else _norm(block.norm, hidden) + hidden * altup.output_scale)


def _residual_products(block: BlockConfig, hidden: int) -> int:
    altup, count = block.altup, 0
    count += 0 if block.laurel_rank is None else 2 * hidden * block.laurel_rank
    count += 0 if block.layer_input is None else 2 * hidden * block.layer_input.size
    return count + (0 if altup is None else altup.streams * (hidden + altup.streams**2 + altup.streams))


def _stem(config: StackConfig, first: int) -> int:
    """Return the number of weights of an audio stem's convolutions, with those of the first counted `first` times."""
    if config.audio is None:
        return 0
    return 3 * config.hidden_size * (first * config.audio.mel_bins + config.hidden_size)


def _patch_stem(config: StackConfig) -> int:
    """Return the number of weights of the map of patches, and of the learned tokens before them."""
    stem = config.patch_stem
    if stem is None:
        return 0
    return config.hidden_size * (stem.inputs + stem.bias + config.context_length - stem.grid.patches)


def _norm(norm: NormConfig | None, size: int) -> int:
    return 0 if norm is None else norm.weights(size)


def _block_norms(block: BlockConfig, hidden: int) -> int:
    branches = 1 + (block.cross_attention is not None) + (block.feed_forward is not None)
    count = 0
    if block.norm_placement != "output":
        count += branches - block.branch_norms - (block.residual == "parallel_one_norm") - (not block.attention_norm)
    if block.norm_placement in ("output", "sandwich"):
        count += branches
    return count * _norm(block.norm, hidden)


def _attention(attention: AttentionConfig, hidden: int) -> int:
    head_dim, qkv_bias = attention.head_dim, attention.qkv_bias
    width, kv_width = attention.num_heads * head_dim, attention.num_kv_heads * head_dim
    own, values = attention.shares is None, not attention.value_from_key
    count = _projections(attention, hidden)
    if attention.latent is not None:
        latent = attention.latent
        ranks = latent.rank + (latent.query_rank or 0)
        count += _norm(latent.norm, ranks) + (ranks + latent.shared_dim) * latent.bias
    count += (width + kv_width * (values + attention.key_bias) * own) * qkv_bias + hidden * attention.output_bias
    count += attention.num_heads * attention.sinks + attention.output_size * qkv_bias * attention.output_gate
    count += 3 * width * (hidden + qkv_bias) * attention.global_projections
    count += _norm(attention.value_norm, head_dim)
    if attention.qk_norm is not None:
        norm, over = attention.qk_norm.norm, attention.qk_norm.over
        keys = _norm(norm, head_dim if over == "head" else kv_width) * own
        count += _norm(norm, head_dim if over == "head" else width) + keys
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


def _cross_attention(attention: CrossAttentionConfig, hidden: int, source_size: int) -> int:
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


def _feed_forward(feed_forward: FeedForwardConfig | ExpertsConfig | None, hidden: int) -> int:
    if feed_forward is None:
        return 0
    if isinstance(feed_forward, ExpertsConfig):
        return _experts(feed_forward, hidden)
    inner, inwards = feed_forward.intermediate_size, 1 + feed_forward.gated
    return (inwards + 1) * hidden * inner + (inwards * inner + hidden) * feed_forward.bias


def _experts(config: ExpertsConfig, hidden: int) -> int:
    router, experts = config.router, config.num_experts
    count = experts * (hidden + router.bias + router.choice_bias + router.expert_scale) + _norm(router.norm, hidden)
    count += experts * _feed_forward(config.expert, hidden) + hidden * config.shared_gate
    if config.shared is not None:
        count += _feed_forward(config.shared, hidden)
    return count + 4 * _norm(config.branch_norm, hidden)


def _decoder_head(config: DecoderConfig) -> int:
    return _table(config) * (not config.tied_head) + config.vocab_size * config.head_bias


def _projector(config: PictureTextConfig) -> int:
    hidden, bias = config.hidden_size, config.projector.bias
    count = hidden * (config.feature_size + bias)
    return count if isinstance(config.projector, PixelShuffleProjector) else count + hidden * (hidden + bias)


def _vision_head(config: VisionConfig) -> int:
    hidden, pooler, classifier = config.hidden_size, config.pooler, config.classifier
    count = 0 if config.projection is None else config.pooled_size * config.projection
    match pooler:
        case TokenPooler():
            dense = 0 if pooler.dense is None else config.pooled_size * (hidden + 1)
            count += dense + _norm(pooler.norm, hidden)
        case AttentionPooler():
            count += hidden + 4 * hidden * (hidden + 1) + _norm(pooler.norm, hidden)
            count += _feed_forward(pooler.feed_forward, hidden)
    if classifier is not None:
        inputs = hidden * len(classifier.poolings) + 1 + (hidden + 1) * classifier.distilled
        count += len(classifier.labels) * inputs
    return count


def _vision_head_products(config: VisionConfig) -> int:
    """Return what a state is multiplied with for a pooler that attends to all; the rest is computed once a picture."""
    return 2 * config.hidden_size**2 if isinstance(config.pooler, AttentionPooler) else 0


def _products(config: StackConfig) -> int:
    """Return the number of weights that a token is multiplied with: matrices without biases."""
    hidden, embedding = config.hidden_size, config.per_layer_embedding
    count = sum(_block_products(block, hidden) for block in config.blocks)
    count += 0 if embedding is None else hidden * len(config.blocks) * embedding.size
    count += 0 if config.embedding_size is None else hidden * config.embedding_size
    count += _token_projection(config)
    count += _stem(config, 2)  # the second convolution halves the frames: two of the first make one token
    count += 0 if config.patch_stem is None else hidden * config.patch_stem.inputs
    return count + _stream_projections(config) + HEADS[type(config)].products(config)


class HeadCount(NamedTuple):
    """Counts of the weights of a head: all of them, and those that every token is multiplied with."""

    weights: Callable[[Any], int]
    products: Callable[[Any], int]


HEADS: dict[type[StackConfig], HeadCount] = {
    DecoderConfig: HeadCount(_decoder_head, _table),
    EncoderConfig: HeadCount(
        lambda config: 0 if config.head is None else config.head.weights(config.sizes),
        lambda config: 0 if config.head is None else config.head.products(config.sizes),
    ),
    VisionConfig: HeadCount(_vision_head, _vision_head_products),
    PictureTextConfig: HeadCount(lambda config: _decoder_head(config) + _projector(config), _table),
}
"""Counts of heads, by the class of the stack."""


def _block_products(block: BlockConfig, hidden: int) -> int:
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
    return count + _feed_forward_products(block.feed_forward, hidden) + _residual_products(block, hidden)


def _feed_forward_products(feed_forward: FeedForwardConfig | ExpertsConfig | None, hidden: int) -> int:
    if feed_forward is None:
        return 0
    if isinstance(feed_forward, FeedForwardConfig):
        return (2 + feed_forward.gated) * hidden * feed_forward.intermediate_size
    count = hidden * (feed_forward.num_experts + feed_forward.shared_gate)
    count += feed_forward.experts_per_token * _feed_forward_products(feed_forward.expert, hidden)
    return count + (0 if feed_forward.shared is None else _feed_forward_products(feed_forward.shared, hidden))


def _scores(config: StackConfig) -> int:
    """Return the multiplications of a query with one key, and of a softmax weight with its value, in all layers."""
    return sum(2 * attention.num_heads * attention.head_dim for attention in config.attentions)
