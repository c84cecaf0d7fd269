"""Random models over every block that `DecoderConfig` can say: what exports and verification are tried on.

`random_model(random.Random(seed))` always draws the same model for a seed. Sizes are small; windows, chunks and blocks
are shorter than a verification's texts, so that every rule about distance is at work.
"""

import random
from dataclasses import replace
from typing import Any

from edgeformer.config import (
    AlibiConfig,
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    NormConfig,
    ProportionalScaling,
    QKNormConfig,
    QueryTemperature,
    RandomBlocks,
    RotaryConfig,
    ShawConfig,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
    YarnScaling,
)


def random_model(draw: random.Random) -> DecoderConfig:
    """A model of one to four blocks, which may differ in all but the cache's geometry."""
    kv_heads = draw.choice([1, 2, 3])
    geometry = {
        "num_kv_heads": kv_heads,
        "num_heads": kv_heads * draw.choice([1, 2, 4]),
        "head_dim": draw.choice([8, 16, 16, 32, 32, 64, 12]),
    }
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


def _block(draw: random.Random, geometry: dict[str, int]) -> BlockConfig:
    placement, residual = draw.choice(
        [
            ("pre", "serial"), ("pre", "parallel"), ("pre", "parallel_one_norm"), ("post", "serial"),
            ("output", "serial"), ("output", "parallel"), ("sandwich", "serial"), ("sandwich", "parallel"),
        ]
    )  # fmt: skip
    return BlockConfig(
        attention=_attention(draw, geometry),
        feed_forward=_feed_forward(draw),
        norm=_norm(draw),
        norm_placement=placement,  # type: ignore[arg-type]
        residual=residual,  # type: ignore[arg-type]
        residual_scale=draw.choice([1.0, 1.0, 0.5]),
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
