"""Draw random models over every block that a `ModelConfig` can express, to test exports and verification.

`random_model(random.Random(seed))` draws the same decoder for the same seed, and so do `random_encoder` and
`random_seq2seq`. Sizes are small; windows, chunks and blocks are shorter than the texts of a verification, so that
every rule about distance takes effect.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from edgeformer.config import (
    AlibiConfig,
    AttentionConfig,
    AudioStem,
    BlockConfig,
    ClassificationHead,
    CrossAttentionConfig,
    DecoderConfig,
    DisentangledConfig,
    EncoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    MaskedLMHead,
    ModelConfig,
    NormConfig,
    Pooling,
    PoolingHead,
    PoolingLayer,
    ProportionalScaling,
    QKNormConfig,
    QueryTemperature,
    QuestionAnsweringHead,
    RandomBlocks,
    RotaryConfig,
    Seq2SeqConfig,
    ShawConfig,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
    YarnScaling,
)


def random_model(draw: random.Random) -> DecoderConfig:
    """Draw a decoder of one to four blocks, which may differ in everything except the geometry of the cache."""
    geometry = _geometry(draw)
    hidden, context = draw.choice([32, 48, 64, 96, 128]), draw.choice([64, 256, 700])
    kinds = [_block(draw, geometry) for _ in range(draw.choice([1, 1, 2]))]
    blocks = tuple(draw.choice(kinds) for _ in range(draw.choice([1, 2, 2, 4])))
    positions: list[Any] = [None, None, None, SinusoidalPositions(interleaved=_maybe(draw, 0.5))]
    positions.append(LearnedPositions(rows=context + 5, offset=draw.choice([0, 2])))
    last = blocks[-1]
    tied = _maybe(draw, 0.5)
    return DecoderConfig(
        vocab_size=draw.choice([53, 131, 500, 2003]),
        hidden_size=hidden,
        context_length=context,
        blocks=blocks,
        final_norm=None if last.norm_placement == "post" and _maybe(draw, 0.7) else _norm(draw),
        tied_head=tied,
        head_bias=not tied and _maybe(draw, 0.3),
        embedding_scale=draw.choice([1.0, 1.0, hidden**0.5]),
        position_embedding=draw.choice(positions),
        embedding_norm=_norm(draw) if _maybe(draw, 0.2) else None,
        logit_scale=draw.choice([1.0, 1.0, 0.125]),
        logit_softcap=draw.choice([None, None, 5.0]),
    )


def random_encoder(draw: random.Random) -> EncoderConfig:
    """Draw an encoder of texts, with or without a head."""
    config, head = _encoder(draw), _head(draw)
    return replace(
        config,
        token_types=draw.choice([0, 1, 3]),
        head=head,
        shared_blocks=len(set(config.blocks)) == 1 and _maybe(draw, 0.3),
        embedding_size=draw.choice([None, None, 24, 40]),
    )


def random_seq2seq(draw: random.Random) -> Seq2SeqConfig:
    """Draw an encoder of texts or of audio, and a decoder with cross-attention in every block."""
    encoder, alone = _encoder(draw), random_model(draw)
    if _maybe(draw, 0.2):
        encoder = replace(encoder, vocab_size=0, audio=AudioStem(mel_bins=draw.choice([8, 10])))
    geometry = {"num_heads": draw.choice([1, 2, 4]), "head_dim": draw.choice([8, 12, 16])}
    reading = {
        block: replace(
            block,
            residual="serial",
            cross_attention=_cross_attention(draw, geometry),
            attention_norm=_maybe(draw, 0.9),
        )
        for block in dict.fromkeys(alone.blocks)
    }
    decoder = replace(alone, blocks=tuple(reading[block] for block in alone.blocks), head_bias=_maybe(draw, 0.3))
    shared = encoder.audio is None and _maybe(draw, 0.5)
    if shared:
        encoder = replace(encoder, vocab_size=decoder.vocab_size, hidden_size=decoder.hidden_size)
    return Seq2SeqConfig(encoder=encoder, decoder=decoder, shared_embedding=shared)


RANDOM_MODELS: dict[str, Callable[[random.Random], ModelConfig]] = {
    "decoder": random_model,
    "encoder": random_encoder,
    "seq2seq": random_seq2seq,
}


def _encoder(draw: random.Random) -> EncoderConfig:
    """Draw an encoder of texts as an encoder-decoder has it: without a head and token types."""
    hidden, context = draw.choice([32, 48, 64]), draw.choice([30, 64])
    kinds = [_block(draw, _geometry(draw), causal=False) for _ in range(draw.choice([1, 1, 2]))]
    blocks = tuple(draw.choice(kinds) for _ in range(draw.choice([1, 2, 3])))
    sinusoids = SinusoidalPositions(
        base=draw.choice([1e3, 1e4]),
        interleaved=_maybe(draw, 0.5),
        to_base=_maybe(draw, 0.5),
        offset=draw.choice([0, 2]),
    )
    positions = [None, sinusoids, LearnedPositions(rows=context + 3, offset=draw.choice([0, 2]))]
    return EncoderConfig(
        vocab_size=draw.choice([53, 131]),
        hidden_size=hidden,
        context_length=context,
        blocks=blocks,
        final_norm=None if blocks[-1].norm_placement == "post" and _maybe(draw, 0.7) else _norm(draw),
        embedding_scale=draw.choice([1.0, hidden**0.5]),
        position_embedding=draw.choice(positions),
        embedding_norm=_norm(draw) if _maybe(draw, 0.4) else None,
    )


def _head(draw: random.Random) -> MaskedLMHead | ClassificationHead | QuestionAnsweringHead | PoolingHead | None:
    dense: Any = draw.choice([None, "tanh", "gelu"])
    heads: list[Any] = [
        None,
        QuestionAnsweringHead(),
        PoolingHead(
            pooling=draw.choice([*get_args(Pooling), ("max", "weighted_mean")]),
            layers=(PoolingLayer(size=24, activation="tanh", residual=_maybe(draw, 0.5)),) * _maybe(draw, 0.3),
            normalize=_maybe(draw, 0.5),
        ),
        MaskedLMHead(
            activation=draw.choice(["gelu", "gelu_tanh", "relu"]),  # type: ignore[arg-type]
            norm=_norm(draw),
            dense_bias=_maybe(draw, 0.5),
            bias=_maybe(draw, 0.5),
            tied=_maybe(draw, 0.7),
        ),
        ClassificationHead(
            labels=("yes", "no", "perhaps"),
            pooling=draw.choice(["first", "mean", None]),  # type: ignore[arg-type]
            dense=dense,
            dense_bias=_maybe(draw, 0.5),
            norm=_norm(draw) if dense and _maybe(draw, 0.5) else None,
            bias=_maybe(draw, 0.5),
        ),
    ]
    return draw.choice(heads)  # type: ignore[no-any-return]


def _cross_attention(draw: random.Random, geometry: dict[str, int]) -> CrossAttentionConfig:
    return CrossAttentionConfig(
        **geometry,
        num_kv_heads=draw.choice([None, None, 1]),
        softcap=draw.choice([None, None, 4.0]),
        scale=draw.choice([1.0, geometry["head_dim"] ** -0.5]),
        qkv_bias=_maybe(draw, 0.5),
        output_bias=_maybe(draw, 0.5),
        key_bias=_maybe(draw, 0.5),
    )


def _geometry(draw: random.Random) -> dict[str, int]:
    kv_heads = draw.choice([1, 2, 3])
    return {
        "num_kv_heads": kv_heads,
        "num_heads": kv_heads * draw.choice([1, 2, 4]),
        "head_dim": draw.choice([8, 16, 16, 32, 32, 64, 12]),
    }


def _block(draw: random.Random, geometry: dict[str, int], *, causal: bool = True) -> BlockConfig:
    placement, residual = draw.choice(
        [
            ("pre", "serial"), ("pre", "parallel"), ("pre", "parallel_one_norm"), ("post", "serial"),
            ("output", "serial"), ("output", "parallel"), ("sandwich", "serial"), ("sandwich", "parallel"),
        ]
    )  # fmt: skip
    return BlockConfig(
        attention=_attention(draw, geometry) if causal else _both_ways(draw, geometry),
        feed_forward=_feed_forward(draw),
        norm=_norm(draw),
        norm_placement=placement,  # type: ignore[arg-type]
        residual=residual,  # type: ignore[arg-type]
        residual_scale=draw.choice([1.0, 1.0, 0.5]),
        attention_norm=causal or _maybe(draw, 0.8),
    )


def _norm(draw: random.Random, *, batch: bool = True) -> NormConfig:
    kind = draw.choice(["rms_norm", "rms_norm", "layer_norm", "layer_norm"] + ["batch_norm"] * batch)
    weight = _maybe(draw, 0.85)
    return NormConfig(
        kind=kind,  # type: ignore[arg-type]
        eps=draw.choice([1e-6, 1e-5, 1e-3]),
        weight=weight,
        bias=kind != "rms_norm" and weight and _maybe(draw, 0.6),
        offset=draw.choice([0.0, 0.0, 1.0]) if weight else 0.0,
    )


def _attention(draw: random.Random, geometry: dict[str, int]) -> AttentionConfig:
    head_dim = geometry["head_dim"]
    rotary, relative = draw.choice(
        [(_rotary(draw, head_dim), None)] * 4 + [(None, None), (None, _relative(draw, geometry))] * 2
    )
    kind = draw.choice(["full", "full", "window", "window", "chunk", "global", "random"])
    pattern: dict[str, Any] = {
        "full": {},
        "window": {"window": draw.choice([3, 8, 20])},
        "chunk": {"chunk": draw.choice([5, 16])},
        "global": {"window": draw.choice([3, 8]), "global_tokens": draw.choice([1, 4])},
        "random": {
            "window": draw.choice([3, 8]),
            "global_tokens": draw.choice([0, 2]),
            "random_blocks": RandomBlocks(size=draw.choice([3, 8]), count=draw.choice([1, 2]), seed=draw.randrange(9)),
        },
    }[kind]
    return AttentionConfig(
        **geometry,
        **pattern,
        scale=head_dim**-0.5 * draw.choice([1.0, 1.0, 0.7]),
        qkv_bias=_maybe(draw, 0.3),
        output_bias=_maybe(draw, 0.3),
        rotary=rotary,
        relative=relative,
        qk_norm=_qk_norm(draw) if _maybe(draw, 0.3) else None,
        qkv_clip=draw.choice([None, None, None, 1.5]),
        query_temperature=QueryTemperature(floor_scale=8, scale=0.3) if _maybe(draw, 0.1) else None,
        softcap=draw.choice([None, None, 4.0]),
        sinks=_maybe(draw, 0.2),
    )


def _both_ways(draw: random.Random, geometry: dict[str, int]) -> AttentionConfig:
    """Draw bidirectional attention: causal features are removed or made bidirectional."""
    attention = _attention(draw, geometry)
    relative = attention.relative
    if isinstance(relative, TransformerXLConfig) and attention.num_heads == attention.num_kv_heads:
        norm = attention.qk_norm and attention.qk_norm.norm
        relative = DisentangledConfig(span=8, max_distance=20, shared_projections=attention.qkv_bias, norm=norm)
    elif isinstance(relative, ShawConfig | TransformerXLConfig):
        relative = T5BiasConfig(num_buckets=16, max_distance=20)
    if isinstance(relative, T5BiasConfig):
        relative = replace(relative, bidirectional=True, table=draw.choice([0, 1]))
    return replace(
        attention,
        causal=False,
        key_bias=_maybe(draw, 0.5),
        relative=relative,
        random_blocks=None,
        global_projections=attention.global_tokens > 0 and _maybe(draw, 0.5),
    )


def _rotary(draw: random.Random, head_dim: int) -> RotaryConfig:
    width = draw.choice([head_dim, head_dim, head_dim // 2, head_dim // 4])
    scaling = draw.choice(
        [
            None,
            None,
            LinearScaling(factor=4.0),
            ProportionalScaling(factor=1.0, fraction=0.5),
            Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=64),
            YarnScaling(
                factor=4.0, attention_factor=1.1, beta_fast=32.0, beta_slow=1.0, original_context_length=64,
                truncate=True,
            ),
        ]
    )  # fmt: skip
    return RotaryConfig(
        rotary_dim=max(2, width // 2 * 2), base=draw.choice([1e4, 5e5]), interleaved=_maybe(draw, 0.4), scaling=scaling
    )


def _relative(draw: random.Random, geometry: dict[str, int]) -> Any:
    heads = geometry["num_heads"]
    return draw.choice(
        [
            AlibiConfig(slopes=tuple(2.0 ** -(8 * (head + 1) / heads) for head in range(heads))),
            T5BiasConfig(num_buckets=draw.choice([8, 32]), max_distance=draw.choice([20, 128])),
            ShawConfig(max_distance=draw.choice([2, 16]), values=_maybe(draw, 0.5)),
            TransformerXLConfig(),
        ]
    )


def _qk_norm(draw: random.Random) -> QKNormConfig:
    return QKNormConfig(
        norm=_norm(draw, batch=False),
        over=draw.choice(["head", "each_head", "projection"]),  # type: ignore[arg-type]
        after_rotary=_maybe(draw, 0.3),
    )


def _feed_forward(draw: random.Random) -> FeedForwardConfig:
    gated = _maybe(draw, 0.6)
    plain = ["relu", "relu_squared", "gelu", "gelu_tanh", "silu"]
    config = FeedForwardConfig(
        intermediate_size=draw.choice([40, 96, 200]),
        activation=draw.choice([*plain, "sigmoid", "identity", "tanh"] if gated else plain),  # type: ignore[arg-type]
        bias=_maybe(draw, 0.3),
        gated=gated,
        up_activation=draw.choice(["identity", "identity", "tanh"]) if gated else "identity",  # type: ignore[arg-type]
    )
    return replace(config, beta=1.702) if config.activation == "silu" and _maybe(draw, 0.3) else config


def _maybe(draw: random.Random, probability: float) -> bool:
    return draw.random() < probability
