"""Small decoders that have, between them, every kind of block beyond the families'."""

from edgeformer.config import (
    AlibiConfig,
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    ExpertsConfig,
    FeedForwardConfig,
    LearnedPositions,
    NormConfig,
    QKNormConfig,
    QueryTemperature,
    RandomBlocks,
    RotaryConfig,
    RouterConfig,
    ShawConfig,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
    YarnScaling,
)

RMS_NORM = NormConfig(eps=1e-5)
LAYER_NORM = NormConfig(kind="layer_norm", eps=1e-5, bias=True)
BATCH_NORM = NormConfig(kind="batch_norm", eps=1e-5, bias=True)


def attention(**options):
    plain = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "scale": 0.35, "qkv_bias": False, "output_bias": False}
    return AttentionConfig(**{**plain, "rotary": None, **options})


def block(attention, norm=RMS_NORM, feed_forward=("silu", True), **options):
    """feed_forward: a config, or activation, whether it is gated, and what the other half of a gate goes through."""
    if isinstance(feed_forward, tuple):
        activation, gated, up_activation = (*feed_forward, "identity")[:3]
        feed_forward = FeedForwardConfig(
            intermediate_size=40, activation=activation, bias=not gated, gated=gated, up_activation=up_activation
        )
    return BlockConfig(attention=attention, feed_forward=feed_forward, norm=norm, **options)


def model(*blocks, **options):
    plain = {"vocab_size": 61, "hidden_size": 32, "context_length": 64, "tied_head": False, "final_norm": RMS_NORM}
    return DecoderConfig(blocks=blocks, **{**plain, **options})


def rotary(width=8, interleaved=False, scaling=None):
    return RotaryConfig(rotary_dim=width, base=500.0, interleaved=interleaved, scaling=scaling)


def expert(activation="silu", **options):
    plain = {"intermediate_size": 24, "activation": activation, "bias": False}
    return FeedForwardConfig(**{**plain, **options})


def experts(router, network=None, count=6, used=2, **options):
    """Experts behind a router of these fields; norms over weights that are drawn are of SwiGLU by default."""
    router = RouterConfig(**{"scoring": "softmax", "normalized": True, **router})
    return ExpertsConfig(
        num_experts=count, experts_per_token=used, expert=network or expert(), router=router, **options
    )


def routed(*feed_forwards, **options):
    """A model with one block for each of these networks."""
    return model(*[block(attention(rotary=rotary()), feed_forward=each, **options) for each in feed_forwards])


GROUPED = {"scoring": "sigmoid", "choice_bias": True, "groups": 3, "groups_per_token": 2, "group_score": "top2_sum"}
YARN = YarnScaling(
    factor=4.0, attention_factor=1.1, beta_fast=32.0, beta_slow=1.0, original_context_length=16, truncate=True
)
BIASES = {"qkv_bias": True, "output_bias": True}
SPARSE = RandomBlocks(size=3, count=2, seed=1)

KINDS = {
    "2017": model(
        block(attention(**BIASES), LAYER_NORM, ("relu", False), norm_placement="post"),
        final_norm=None, tied_head=True, embedding_scale=6.0, position_embedding=SinusoidalPositions(),
    ),
    "sinks": model(
        block(attention(rotary=rotary(), sinks=True)),
        block(attention(rotary=rotary(4), sinks=True, window=6, softcap=3.0)),
    ),
    "shaw": model(
        block(attention(relative=ShawConfig(max_distance=5, values=True))),
        block(attention(relative=ShawConfig(max_distance=3, values=False))),
    ),
    "transformer-xl": model(
        *[block(attention(relative=TransformerXLConfig()), LAYER_NORM, ("gelu", False), norm_placement="post")] * 2,
        final_norm=None,
    ),
    "alibi": model(
        block(attention(relative=AlibiConfig(slopes=(0.5, 0.25, 0.125, 0.0625)), qkv_clip=1.5)),
        block(attention(relative=AlibiConfig(slopes=(0.9, 0.5, 0.2, 0.1)), window=7, softcap=4.0)),
    ),
    "t5-bias": model(
        block(attention(relative=T5BiasConfig(num_buckets=8, max_distance=20), sinks=True)),
        block(attention(relative=T5BiasConfig(num_buckets=8, max_distance=20), softcap=4.0)),
    ),
    "chunk": model(
        block(attention(rotary=rotary(), chunk=5, query_temperature=QueryTemperature(floor_scale=8, scale=0.3))),
        block(attention(rotary=rotary(), chunk=11, sinks=True)),
    ),
    "sparse": model(
        block(attention(window=4, global_tokens=2, random_blocks=SPARSE, rotary=rotary())),
        block(attention(window=3, global_tokens=1, softcap=5.0), residual="parallel"),
        position_embedding=LearnedPositions(rows=70, offset=4), embedding_norm=LAYER_NORM,
    ),
    "partial-rotary": model(
        block(attention(rotary=rotary(4, interleaved=True)), norm_placement="sandwich"),
        block(attention(rotary=rotary(6, scaling=YARN), window=9), residual="parallel_one_norm"),
    ),
    "odd-heads": model(
        block(attention(head_dim=12, rotary=rotary(12), num_heads=6, num_kv_heads=2)),
        block(attention(head_dim=12, rotary=rotary(6, interleaved=True), num_kv_heads=2, window=5), LAYER_NORM),
    ),
    "wide-rotary": model(
        block(attention(head_dim=16, rotary=rotary(16, interleaved=True), **BIASES)),
        block(attention(head_dim=16, rotary=rotary(16), num_kv_heads=2, window=6, softcap=2.0)),
    ),
    "batch-norm": model(
        block(attention(num_kv_heads=1), BATCH_NORM, ("sigmoid", True, "tanh")),
        block(attention(num_kv_heads=1), BATCH_NORM, ("relu_squared", False), norm_placement="output"),
        position_embedding=SinusoidalPositions(interleaved=False), head_bias=True, logit_softcap=3.0, logit_scale=0.5,
    ),
    "gates": model(
        *[
            block(attention(), NormConfig(eps=1e-5, weight=False), gate)
            for gate in (("relu", True), ("identity", True), ("gelu", True), ("gelu_tanh", True), ("sigmoid", True))
        ],
    ),
    "qk-norm": model(
        block(attention(rotary=rotary(), qk_norm=QKNormConfig(norm=RMS_NORM, over="head", after_rotary=True))),
        block(attention(rotary=rotary(), qk_norm=QKNormConfig(norm=LAYER_NORM, over="each_head"))),
        block(attention(rotary=rotary(), qk_norm=QKNormConfig(norm=RMS_NORM, over="projection"))),
    ),
    "shared caches": model(
        block(attention(rotary=rotary(), window=6)),
        block(attention(rotary=rotary(4), num_kv_heads=1, head_dim=16, scale=0.2)),
        block(attention(rotary=rotary(), window=6, shares=0, sinks=True)),
        block(attention(rotary=rotary(4), num_kv_heads=1, head_dim=16, scale=0.2, shares=1, softcap=2.0)),
        block(attention(shares=0, window=4, global_tokens=1, qk_norm=QKNormConfig(norm=RMS_NORM, over="head"))),
    ),
    "shared caches of odd heads": model(
        block(attention(head_dim=12, rotary=rotary(12, interleaved=True), num_heads=6)),
        block(attention(head_dim=12, rotary=rotary(12, interleaved=True), num_heads=6, shares=0, **BIASES)),
    ),
    "experts": routed(experts({}), experts({"normalized": False}, used=3)),
    "experts of gpt-oss": routed(
        experts({"bias": True}, expert(bias=True, beta=1.702, limit=0.4, up_offset=1.0)),
        experts({"scoring": "sparse_mixer", "normalized": False, "jitter": 0.05}),
    ),
    "experts in groups": routed(
        experts({**GROUPED, "scale": 2.5, "sum_epsilon": 1e-6}, shared=expert(), used=3),
        experts({"groups": 2, "normalized": False, "scale": 1.5}, shared=expert(), shared_gate=True),
    ),
    "experts of Gemma 4": routed(
        experts(
            {"norm": RMS_NORM, "logit_scale": 0.5, "expert_scale": True}, expert("gelu_tanh"),
            shared=expert("gelu_tanh"), branch_norm=RMS_NORM,
        ),
        norm_placement="sandwich",
    ),
    "experts of Llama 4": routed(
        experts({"scoring": "sigmoid", "normalized": False}, used=1, weighted_input=True, shared=expert()),
        expert(), experts({"choice_bias": True, "sum_floor": 1e-6}, expert("relu", gated=False, bias=True)),
    ),
    "experts without gates": routed(
        *[
            experts({}, expert(activation, gated=False, bias=True))
            for activation in ("relu_squared", "gelu", "gelu_tanh", "silu", "identity")
        ]
    ),
}  # fmt: skip
