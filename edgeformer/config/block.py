"""One block: its norms, its attentions, its feed-forward."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.config.position import (
    AlibiConfig,
    RelativePosition,
    RotaryConfig,
    ShawConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from edgeformer.schema import check

Activation = Literal["identity", "relu", "relu_squared", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]


@dataclass(frozen=True, kw_only=True)
class NormConfig:
    """Normalisation of a vector x.

    rms_norm    x / sqrt(mean(x²) + eps) · weight (arXiv 1910.07467)
    layer_norm  (x − mean(x)) / sqrt(var(x) + eps) · weight + bias (arXiv 1607.06450)
    batch_norm  (x − running_mean) / sqrt(running_var + eps) · weight + bias, each feature by itself (arXiv 1502.03167)

    offset is added to the stored weight: 1 where a checkpoint stores its distance from one.
    """

    kind: Literal["rms_norm", "layer_norm", "batch_norm"] = "rms_norm"
    eps: float
    weight: bool = True
    bias: bool = False
    offset: float = 0.0

    def __post_init__(self) -> None:
        check(self.eps >= 0, self, "eps", "zero or positive")
        if self.bias:
            check(self.kind != "rms_norm" and self.weight, self, "bias", "False for rms_norm and where weight is False")
        if not self.weight:
            check(self.offset == 0, self, "offset", "0 where there is no weight")


@dataclass(frozen=True, kw_only=True)
class QKNormConfig:
    """Queries and keys are normalised before they meet.

    over: `head` every head by itself with one weight [D] for all; `each_head` with a weight of its own [H, D];
    `projection` the heads together [H·D]. after_rotary: normalised once they are rotated, not before.
    """

    norm: NormConfig
    over: Literal["head", "each_head", "projection"]
    after_rotary: bool = False

    def __post_init__(self) -> None:
        check(self.norm.kind != "batch_norm", self, "norm", "an rms_norm or a layer_norm")


@dataclass(frozen=True, kw_only=True)
class RandomBlocks:
    """Blocks of `size` tokens; every block sees `count` earlier ones, drawn with `seed`. Source: arXiv 2007.14062."""

    size: int
    count: int
    seed: int

    def __post_init__(self) -> None:
        check(self.size > 0, self, "size", "positive")
        check(self.count > 0, self, "count", "positive")


@dataclass(frozen=True, kw_only=True)
class QueryTemperature:
    """Queries grow with their position p: · (1 + scale · log(1 + floor((p + 1) / floor_scale))). Source: Llama 4."""

    floor_scale: float
    scale: float

    def __post_init__(self) -> None:
        check(self.floor_scale > 0, self, "floor_scale", "positive")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Self-attention; `num_kv_heads` = num_heads is MHA, 1 is MQA, between is GQA (arXiv 2305.13245).

    A query at i sees the keys j ≤ i with i − j < window, or j < global_tokens, or in its random blocks; without a
    window all; with a chunk those of its own chunk, j // chunk = i // chunk. Not causal, it sees those after it too,
    with |i − j| < window, and global tokens see all; global_projections: they do so with projections of their own
    (arXiv 2004.05150). softcap: scores s become softcap · tanh(s / softcap). sinks: a learned score of each head that
    takes part of the softmax (arXiv 2309.17453). qkv_clip: queries, keys and values are clamped to ± qkv_clip.
    key_bias: whether qkv_bias is for keys too, where it cancels out of the softmax.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool
    output_bias: bool
    rotary: RotaryConfig | None
    causal: bool = True
    key_bias: bool = True
    relative: RelativePosition | None = None
    qk_norm: QKNormConfig | None = None
    qkv_clip: float | None = None
    query_temperature: QueryTemperature | None = None
    softcap: float | None = None
    sinks: bool = False
    window: int | None = None
    chunk: int | None = None
    global_tokens: int = 0
    global_projections: bool = False
    random_blocks: RandomBlocks | None = None

    def __post_init__(self) -> None:
        check(self.num_heads > 0, self, "num_heads", "positive")
        check(self.head_dim > 0, self, "head_dim", "positive")
        divides = self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads == 0
        check(divides, self, "num_kv_heads", f"a divisor of num_heads ({self.num_heads})")
        if self.rotary is not None:
            check(self.rotary.rotary_dim <= self.head_dim, self, "rotary", f"no wider than head_dim ({self.head_dim})")
            check(self.relative is None, self, "relative", "None where rotary positions are used; choose one")
        if isinstance(self.relative, AlibiConfig):
            fits = len(self.relative.slopes) == self.num_heads
            check(fits, self, "relative", f"given {self.num_heads} slopes, one for each head")
        for field in ("window", "chunk", "softcap", "qkv_clip"):
            check(getattr(self, field) is None or getattr(self, field) > 0, self, field, "positive, or None")
        check(self.global_tokens >= 0, self, "global_tokens", "zero or positive")
        sparse = self.global_tokens > 0 or self.random_blocks is not None
        check(
            not sparse or self.window is not None, self, "window", "set where global tokens or random blocks add to it"
        )
        check(self.chunk is None or self.window is None, self, "chunk", "None where there is a window; choose one")
        if isinstance(self.relative, T5BiasConfig):
            fits = self.relative.bidirectional != self.causal
            check(fits, self, "relative", "bidirectional where the attention is not causal, and only there")
        if not self.causal:
            one_way = isinstance(self.relative, ShawConfig | TransformerXLConfig) or self.random_blocks is not None
            check(not one_way, self, "causal", "True for Shaw's and Transformer-XL's relations and for random blocks")
        if self.global_projections:
            fits = self.global_tokens > 0 and not self.causal
            check(fits, self, "global_projections", "False without global tokens, and where the attention is causal")

    @property
    def sliding(self) -> bool:
        """Whether nothing but the last `window` keys is ever read."""
        if not self.causal:
            return False
        return self.window is not None and not self.global_tokens and self.random_blocks is None


@dataclass(frozen=True, kw_only=True)
class CrossAttentionConfig:
    """Attention of a decoder to the states of an encoder: every head sees all of the source."""

    num_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool
    output_bias: bool
    key_bias: bool = True

    def __post_init__(self) -> None:
        check(self.num_heads > 0, self, "num_heads", "positive")
        check(self.head_dim > 0, self, "head_dim", "positive")


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """down(activation(up(x))), or gated: down(activation(gate(x)) · up_activation(up(x))). Source: arXiv 2002.05202.

    Gated with up_activation identity, `activation` makes it GLU (sigmoid), Bilinear (identity), ReGLU (relu), GEGLU
    (gelu) or SwiGLU (silu); GTU is sigmoid with up_activation tanh. beta: silu is x · sigmoid(beta · x).
    """

    intermediate_size: int
    activation: Activation
    bias: bool
    gated: bool = True
    up_activation: Activation = "identity"
    beta: float = 1.0

    def __post_init__(self) -> None:
        check(self.intermediate_size > 0, self, "intermediate_size", "positive")
        if not self.gated:
            check(self.up_activation == "identity", self, "up_activation", "'identity' where nothing is gated")
        if "silu" not in (self.activation, self.up_activation):
            check(self.beta == 1, self, "beta", "1 where no activation is silu")


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Attention and feed-forward, between them perhaps attention to an encoder: each a branch f added to the residual
    stream x, with c = residual_scale:

    norm_placement  pre: x + c·f(norm(x)) · post: norm(x + c·f(x)) · output: x + c·norm(f(x)) · sandwich: pre and output
    residual        serial: attention, then feed-forward · parallel: both from the same x, each with its own norm ·
                    parallel_one_norm: both from one norm of x (GPT-J)
    attention_norm  False: the norm before (or behind) self-attention is left out (ModernBERT's first block)
    """

    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    norm: NormConfig
    cross_attention: CrossAttentionConfig | None = None
    attention_norm: bool = True
    norm_placement: Literal["pre", "post", "output", "sandwich"] = "pre"
    residual: Literal["serial", "parallel", "parallel_one_norm"] = "serial"
    residual_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.residual != "serial":
            check(self.norm_placement != "post", self, "norm_placement", "pre, output or sandwich in a parallel block")
            check(self.cross_attention is None, self, "residual", "serial where there is cross-attention")
        if self.residual == "parallel_one_norm":
            check(self.norm_placement == "pre", self, "norm_placement", "'pre' where one norm serves both branches")
