"""All blocks, each with a small model that has it."""

from dataclasses import dataclass, replace
from typing import Any

from edgeformer.config import (
    AlibiConfig,
    AttentionConfig,
    BlockConfig,
    CrossAttentionConfig,
    DecoderConfig,
    DeltaNetConfig,
    EncoderConfig,
    ExpertsConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    QKNormConfig,
    RandomBlocks,
    RecurrentConfig,
    RotaryConfig,
    RouterConfig,
    Seq2SeqConfig,
    ShawConfig,
    ShortConvConfig,
    StateSpaceConfig,
    T5BiasConfig,
    TransformerXLConfig,
)

RMS, LAYER = NormConfig(eps=1e-6), NormConfig(kind="layer_norm", eps=1e-5, bias=True)
BATCH = NormConfig(kind="batch_norm", eps=1e-5, bias=True)
ROTARY = RotaryConfig(rotary_dim=16, base=1e4, interleaved=False, scaling=None)


def _feed_forward(activation: Any = "silu", gated: bool = True) -> FeedForwardConfig:
    return FeedForwardConfig(intermediate_size=24, activation=activation, bias=False, gated=gated)


def _block(
    norm: NormConfig = RMS,
    feed_forward: FeedForwardConfig | ExpertsConfig | None = None,
    cross: CrossAttentionConfig | None = None,
    **attention: Any,
) -> BlockConfig:
    plain = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "qkv_bias": False, "output_bias": False}
    return BlockConfig(
        attention=AttentionConfig(**{**plain, "rotary": None, **attention}),
        feed_forward=feed_forward or _feed_forward(),
        norm=norm,
        cross_attention=cross,
    )


def _decoder(block: BlockConfig, tied: bool = False) -> DecoderConfig:
    sizes = {"vocab_size": 31, "hidden_size": 32, "context_length": 24}
    return DecoderConfig(**sizes, blocks=(block,), final_norm=RMS, tied_head=tied)  # type: ignore[arg-type]


def _encoder(block: BlockConfig) -> EncoderConfig:
    return EncoderConfig(vocab_size=31, hidden_size=32, context_length=24, blocks=(block,), final_norm=RMS)


def _attending(**attention: Any) -> DecoderConfig:
    return _decoder(_block(**attention))


def _recurrent(recurrent: RecurrentConfig) -> DecoderConfig:
    return _decoder(BlockConfig(attention=None, recurrent=recurrent, feed_forward=_feed_forward(), norm=RMS))


def _routed(activation: Any) -> DecoderConfig:
    router = RouterConfig(scoring="sigmoid", normalized=True, choice_bias=True)
    experts = ExpertsConfig(num_experts=4, experts_per_token=2, expert=_feed_forward(activation), router=router)
    return _decoder(_block(feed_forward=experts))


PLAIN = _decoder(_block())
CLASSIC = _decoder(_block(LAYER, _feed_forward("gelu", gated=False), num_kv_heads=4), tied=True)
BATCHED = _decoder(_block(BATCH, _feed_forward("gelu_tanh", gated=False), num_kv_heads=1))
SHARED = replace(PLAIN, blocks=(_block(), _block(shares=0)))
PAIR = Seq2SeqConfig(
    encoder=_encoder(_block(causal=False)),
    decoder=_decoder(
        _block(cross=CrossAttentionConfig(num_heads=4, head_dim=16, scale=0.25, qkv_bias=False, output_bias=False))
    ),
    shared_embedding=False,
)


SHORT_CONV = ShortConvConfig(channels=32, kernel_size=3, bias=False)
DELTA_NET = DeltaNetConfig(num_key_heads=2, num_value_heads=4, key_dim=8, value_dim=16, kernel_size=4, norm_eps=1e-6)
STATE_SPACE = StateSpaceConfig(
    num_heads=4, head_dim=16, state_size=16, num_groups=2, kernel_size=4, input_bias=False, conv_bias=True,
    output_bias=False, norm_eps=1e-6,
)  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A row of the table: a model that has the block, and the nodes of its captured graph that are the block.

    nodes: a regular expression that matches their whole names, `module/Op`.
    """

    title: str
    config: ModelConfig
    nodes: str = r".*/GroupQueryAttention"


FIRST_NORM = r"blocks\.0\.attention_norm/.*"
SUM_AND_NORM = r"blocks\.0/Add|blocks\.0\.feed_forward_norm/.*"
FEED_FORWARD = r"blocks\.0\.feed_forward/.*"
EXPERTS = r"blocks\.0\.feed_forward\.(router/ExpertRouter|experts/MixtureOfExperts)"
ROTATIONS = r".*/RotaryEmbedding.*"

BLOCKS: dict[str, Block] = {
    "rms_norm": Block("RMSNorm", PLAIN, FIRST_NORM),
    "sum_rms_norm": Block("residual sum, then RMSNorm", PLAIN, SUM_AND_NORM),
    "layer_norm": Block("LayerNorm", CLASSIC, FIRST_NORM),
    "sum_layer_norm": Block("residual sum, then LayerNorm", CLASSIC, SUM_AND_NORM),
    "batch_norm": Block("BatchNorm", BATCHED, FIRST_NORM),
    "gelu": Block("GELU (erf)", CLASSIC, FEED_FORWARD),
    "gelu_tanh": Block("GELU (tanh)", BATCHED, FEED_FORWARD),
    "relu_squared": Block(
        "ReLU²", _decoder(_block(feed_forward=_feed_forward("relu_squared", gated=False))), FEED_FORWARD
    ),
    "gated": Block("gated feed-forward (SwiGLU)", PLAIN, FEED_FORWARD),
    "experts": Block("experts, SwiGLU, router of any kind", _routed("silu"), EXPERTS),
    "experts_gelu": Block("experts, gated with GELU", _routed("gelu_tanh"), EXPERTS),
    "tied_head": Block("head tied to the embedding", CLASSIC, r"head/MatMul"),
    "mha": Block("attention, MHA", CLASSIC),
    "gqa": Block("attention, GQA", PLAIN),
    "mqa": Block("attention, MQA", BATCHED),
    "head_dim": Block("attention, head_dim no multiple of 8", _attending(head_dim=12)),
    "rope": Block("RoPE, half-split", _attending(rotary=ROTARY), ROTATIONS),
    "rope_interleaved": Block(
        "RoPE, interleaved", _attending(rotary=replace(ROTARY, interleaved=True)), ROTATIONS
    ),
    "rope_partial": Block("RoPE, 16 of 32 elements", _attending(rotary=ROTARY, head_dim=32), ROTATIONS),
    "rope_narrow": Block(
        "RoPE, 8 of 16 elements", _attending(rotary=replace(ROTARY, rotary_dim=8)), ROTATIONS
    ),
    "qk_norm": Block(
        "QK-norm", _attending(rotary=ROTARY, qk_norm=QKNormConfig(norm=RMS, over="head")), r".*(query|key)_norm/RMSNorm"
    ),
    "window": Block("sliding window", _attending(window=3)),
    "softcap": Block("soft-cap", _attending(softcap=5.0)),
    "sinks": Block("attention sinks", _attending(sinks=True)),
    "alibi": Block("ALiBi", _attending(relative=AlibiConfig(slopes=(0.5, 0.25, 0.125, 0.0625)))),
    "t5": Block("T5's bias", _attending(relative=T5BiasConfig(num_buckets=8, max_distance=20))),
    "shaw": Block("Shaw's relations, of keys", _attending(relative=ShawConfig(max_distance=3, values=False))),
    "shaw_values": Block("the same, and of values", _attending(relative=ShawConfig(max_distance=3, values=True))),
    "transformer_xl": Block("Transformer-XL's relations", _attending(relative=TransformerXLConfig())),
    "chunk": Block("chunks", _attending(chunk=4)),
    "blocks": Block(
        "window, global tokens, random blocks",
        _attending(window=3, global_tokens=2, random_blocks=RandomBlocks(size=3, count=1, seed=0)),
    ),
    "shared": Block("attention to an earlier layer's keys and values", SHARED, r".*/SharedAttention"),
    "encoder": Block("self-attention of an encoder", _encoder(_block(causal=False))),
    "longformer": Block(
        "the same, global tokens with projections of their own",
        _encoder(_block(causal=False, window=3, global_tokens=2, global_projections=True)),
        r".*/(GroupQueryAttention|CrossAttention)",
    ),
    "cross": Block("cross-attention", PAIR, r".*/CrossAttention"),
    "causal_conv": Block("causal convolution with state", _recurrent(SHORT_CONV), r".*/CausalConv"),
    "delta_rule": Block("linear attention, gated delta rule", _recurrent(DELTA_NET), r".*/LinearAttention"),
    "state_space": Block("state space (Mamba-2)", _recurrent(STATE_SPACE), r".*/LinearAttention"),
}  # fmt: skip
