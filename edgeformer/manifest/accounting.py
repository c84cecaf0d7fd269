"""Costs of a model, computed from its config: parameters, bytes, bytes of the cache, FLOPs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgeformer.config import (
    AttentionPooler,
    DecoderConfig,
    DisentangledConfig,
    EncoderConfig,
    GridVisionConfig,
    LearnedPositions,
    ModelConfig,
    NaflexVisionConfig,
    PictureEncoderConfig,
    PictureTextConfig,
    PictureTower,
    SoundTextConfig,
    SoundTowerConfig,
    StackConfig,
    T5BiasConfig,
    TokenPooler,
    TowerTextConfig,
    VisionConfig,
)
from edgeformer.contract.tensors import ElementBytes
from edgeformer.manifest.block_weights import (
    attention_weights,
    block_norm_weights,
    block_products,
    cross_attention_weights,
    feed_forward_products,
    feed_forward_weights,
    norm_weights,
    recurrent_weights,
    residual_weights,
    thin_weights,
)
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Arithmetic

ELEMENT_BYTES: dict[Arithmetic, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of one element."""


def cache_element_bytes(manifest: Manifest) -> ElementBytes:
    """Return the bytes of one element in the cache of a bundle."""
    states = ELEMENT_BYTES[manifest.plan.arithmetic]
    if manifest.plan.half_cache:
        return ElementBytes(ELEMENT_BYTES["fp16"], states)
    has_scales = manifest.cache_scales is not None or manifest.has_scales_per_token
    return ElementBytes(1 if has_scales else states, states)


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
        state_bytes=stack.cache_geometry.size_in_bytes(ElementBytes(size, size), 1, 0),
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

    A run of a prompt over a decode graph spends these on the last token only.
    """
    last, hidden = config.blocks[-1], config.hidden_size
    output = 0 if last.attention is None else hidden * last.attention.output_size
    return 2 * (output + feed_forward_products(last.feed_forward, hidden) + _table(config))


def _parts(config: ModelConfig) -> dict[str, int]:
    """Return the number of parameters by part of the model: those of its stacks, each of which reads the one before."""
    counts: Counter[str] = Counter()
    source_size = 0
    for stack in config.stacks.values():
        counts.update(_stack_parts(stack, source_size))
        source_size = stack.hidden_size
    counts["embedding"] -= _table(config.output_stack) * config.shared_embedding
    counts["head"] += config.similarity_parameters
    return dict(counts)


def _stack_parts(config: StackConfig, source_size: int) -> dict[str, int]:
    hidden, width = config.hidden_size, config.embedding_width
    positions = config.position_embedding
    rows = positions.rows if isinstance(positions, LearnedPositions) else 0
    blocks = config.blocks[:1] if config.shared_blocks else config.blocks
    thin = [block for block in blocks if block.bottleneck is not None]
    blocks = tuple(block for block in blocks if block.bottleneck is None)
    attentions = [block.attention for block in blocks if block.attention is not None]
    norms = sum(block_norm_weights(block, hidden) for block in blocks)
    norms += norm_weights(config.final_norm, hidden) + norm_weights(config.embedding_norm, width)
    tables = {
        (attention.relative, attention.num_heads)
        for attention in attentions
        if isinstance(attention.relative, T5BiasConfig)
    }
    relations = {each.relative for each in attentions if isinstance(each.relative, DisentangledConfig)}
    norms += sum(norm_weights(each.norm, hidden) for each in relations)
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
        "attention": sum(attention_weights(attention, hidden) for attention in attentions)
        + sum(relative.num_buckets * heads for relative, heads in tables)
        + sum(2 * each.span * hidden for each in relations),
        "feed_forward": sum(feed_forward_weights(block.feed_forward, hidden) for block in blocks),
        "norms": norms,
        "head": HEADS[type(config)].weights(config),
    }
    for part, count in thin_weights(thin, hidden).items():
        parts[part] = parts.get(part, 0) + count
    residual = sum(residual_weights(block, hidden) for block in blocks)
    if residual:
        parts["residual"] = parts.get("residual", 0) + residual
    recurrent = [block.recurrent for block in blocks if block.recurrent is not None]
    if recurrent:
        parts["recurrent"] = sum(recurrent_weights(each, hidden) for each in recurrent)
    across = [block.cross_attention for block in blocks if block.cross_attention is not None]
    if across:
        parts["cross_attention"] = sum(cross_attention_weights(each, hidden, source_size) for each in across)
    return parts


def _table(config: StackConfig) -> int:
    return config.vocab_size * config.token_width


def _token_projection(config: StackConfig, bias: bool = False) -> int:
    """Return the number of weights of the layer that makes states of rows of the table of tokens."""
    projection = config.token_projection
    if projection is None:
        return 0
    return config.hidden_size * (projection.size * (3 if projection.trigrams else 1) + bias)


def _per_layer_embedding(config: StackConfig) -> int:
    embedding = config.per_layer_embedding
    if embedding is None:
        return 0
    width = len(config.blocks) * embedding.size
    return (embedding.rows + config.hidden_size) * width + norm_weights(embedding.norm, embedding.size)


def _stream_projections(config: StackConfig) -> int:
    altup = config.blocks[0].altup if config.blocks else None
    return 0 if altup is None else 2 * (altup.streams - 1) * config.hidden_size**2


def _stem(config: StackConfig, first: int) -> int:
    """Return the number of weights of an audio stem's convolutions, with those of the first counted `first` times."""
    if config.audio is None:
        return 0
    return 3 * config.hidden_size * (first * config.audio.mel_bins + config.hidden_size)


def _patch_stem(config: StackConfig) -> int:
    """Return the number of weights of the map of patches, and of the learned tokens before them."""
    stem = config.patch_stem
    vectors = config.patch_vectors
    if vectors is not None:
        norms = sum(norm_weights(vectors.norm, size) for size in (vectors.inputs, config.hidden_size))
        return config.hidden_size * (vectors.inputs + vectors.bias) + norms
    if stem is None:
        return 0
    return config.hidden_size * (stem.inputs + stem.bias + config.context_length - stem.grid.patches)


def _decoder_head(config: DecoderConfig) -> int:
    return _table(config) * (not config.tied_head) + config.vocab_size * config.head_bias


def _encoder_head(config: EncoderConfig) -> int:
    return 0 if config.head is None else config.head.weights(config.sizes)


def _encoder_products(config: EncoderConfig) -> int:
    return 0 if config.head is None else config.head.products(config.sizes)


def _projector(config: TowerTextConfig) -> int:
    more = len(config.deepstack or ())
    newline = config.hidden_size * bool(config.newline)
    return newline + config.projector.weights(config.feature_size, config.hidden_size, more)


def _vision_head(config: PictureTower) -> int:
    hidden, pooler, classifier = config.hidden_size, config.pooler, config.classifier
    count = 0 if config.projection is None else config.pooled_size * config.projection
    match pooler:
        case TokenPooler():
            dense = 0 if pooler.dense is None else config.pooled_size * (hidden + 1)
            count += dense + norm_weights(pooler.norm, hidden)
        case AttentionPooler():
            count += hidden + 4 * hidden * (hidden + 1) + norm_weights(pooler.norm, hidden)
            count += feed_forward_weights(pooler.feed_forward, hidden)
    if classifier is not None:
        inputs = hidden * len(classifier.poolings) + 1 + (hidden + 1) * classifier.distilled
        count += len(classifier.labels) * inputs
    return count


def _vision_head_products(config: PictureTower) -> int:
    """Return what a state is multiplied with for a pooler that attends to all; the rest is computed once a picture."""
    return 2 * config.hidden_size**2 if isinstance(config.pooler, AttentionPooler) else 0


def _products(config: StackConfig) -> int:
    """Return the number of weights that a token is multiplied with: matrices without biases."""
    hidden, embedding = config.hidden_size, config.per_layer_embedding
    count = sum(block_products(block, hidden) for block in config.blocks)
    count += 0 if embedding is None else hidden * len(config.blocks) * embedding.size
    count += 0 if config.embedding_size is None else hidden * config.embedding_size
    count += _token_projection(config)
    count += _stem(config, 2)  # the second convolution halves the frames: two of the first make one token
    count += 0 if config.patch_vectors is None else hidden * config.patch_vectors.inputs
    count += 0 if config.patch_stem is None else hidden * config.patch_stem.inputs
    return count + _stream_projections(config) + HEADS[type(config)].products(config)


class HeadCount(NamedTuple):
    """Counts of the weights of a head: all of them, and those that every token is multiplied with."""

    weights: Callable[[Any], int]
    products: Callable[[Any], int]


HEADS: dict[type[StackConfig], HeadCount] = {
    DecoderConfig: HeadCount(_decoder_head, _table),
    EncoderConfig: HeadCount(_encoder_head, _encoder_products),
    PictureEncoderConfig: HeadCount(lambda config: _encoder_head(config) + _projector(config), _encoder_products),
    GridVisionConfig: HeadCount(lambda config: 0, lambda config: 0),
    NaflexVisionConfig: HeadCount(_vision_head, _vision_head_products),
    VisionConfig: HeadCount(_vision_head, _vision_head_products),
    PictureTextConfig: HeadCount(lambda config: _decoder_head(config) + _projector(config), _table),
    SoundTextConfig: HeadCount(lambda config: _decoder_head(config) + _projector(config), _table),
    SoundTowerConfig: HeadCount(lambda config: 0, lambda config: 0),
}
"""Counts of heads, by the class of the stack."""


def _scores(config: StackConfig) -> int:
    """Return the multiplications of a query with one key, and of a softmax weight with its value, in all layers."""
    return sum(2 * attention.num_heads * attention.head_dim for attention in config.attentions)
