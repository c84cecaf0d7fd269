"""What a model is: a tree of small frozen dataclasses, independent of torch and of any checkpoint format.

Behaviour is carried by fields, never by a model's name. A decoder is a list of `BlockConfig`, so that layers may
differ. What every model must decide (sizes, epsilons, scales, biases) is required; a field with a default is a feature,
and its default is to be without it. Combinations that mean nothing are refused when they are made.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from edgeformer import schema
from edgeformer.contract import CacheGeometry
from edgeformer.errors import ConfigError
from edgeformer.schema import check

Activation = Literal["identity", "relu", "relu_squared", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Position interpolation: every frequency divided by `factor`. Source: arXiv 2306.15595."""

    kind: Literal["linear"] = "linear"
    factor: float


@dataclass(frozen=True, kw_only=True)
class ProportionalScaling:
    """The first `fraction` of the pairs turn at frequencies spread over the whole head, the rest stand still."""

    kind: Literal["proportional"] = "proportional"
    factor: float
    fraction: float


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones kept, a ramp between. Source: Llama 3.1's reference code."""

    kind: Literal["llama3"] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int

    def __post_init__(self) -> None:
        check(self.high_freq_factor > self.low_freq_factor, self, "high_freq_factor", "larger than low_freq_factor")


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """NTK by parts with an attention temperature. Source: arXiv 2309.00071, section 3.4."""

    kind: Literal["yarn"] = "yarn"
    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_context_length: int
    truncate: bool


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling:
    """One divisor for each frequency, found by search. Source: arXiv 2402.13753."""

    kind: Literal["longrope"] = "longrope"
    factors: tuple[float, ...]
    attention_factor: float


RotaryScaling = LinearScaling | ProportionalScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """Rotary position embedding: `rotary_dim` leading elements of each head turn with the position.

    `interleaved` pairs neighbours (0, 1), (2, 3)…; otherwise element i pairs with i + rotary_dim / 2.
    Source: arXiv 2104.09864.
    """

    rotary_dim: int
    base: float
    interleaved: bool
    scaling: RotaryScaling | None

    def __post_init__(self) -> None:
        check(self.rotary_dim > 0 and self.rotary_dim % 2 == 0, self, "rotary_dim", "a positive even number")
        check(self.base > 0, self, "base", "positive")
        if isinstance(self.scaling, LongRopeScaling) and len(self.scaling.factors) != self.rotary_dim // 2:
            check(False, self, "scaling", f"given {self.rotary_dim // 2} factors, one for each pair")


@dataclass(frozen=True, kw_only=True)
class AlibiConfig:
    """Attention with linear biases: slope of the head · (key position − query position). Source: arXiv 2108.12409."""

    kind: Literal["alibi"] = "alibi"
    slopes: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class T5BiasConfig:
    """A learned bias for each head and bucket of distance; far distances share logarithmic buckets.

    Blocks whose configs are equal share one table, as in T5; `table` tells tables apart. Source: arXiv 1910.10683.
    """

    kind: Literal["t5_bias"] = "t5_bias"
    num_buckets: int
    max_distance: int
    table: int = 0

    def __post_init__(self) -> None:
        check(self.num_buckets >= 2 and self.num_buckets % 2 == 0, self, "num_buckets", "a positive even number")
        reach = self.num_buckets // 2
        check(self.max_distance > reach, self, "max_distance", f"more than half of num_buckets ({reach})")


@dataclass(frozen=True, kw_only=True)
class ShawConfig:
    """Relation vectors for clipped distances, added to keys and, if so wished, to values. Source: arXiv 1803.02155."""

    kind: Literal["shaw"] = "shaw"
    max_distance: int
    values: bool

    def __post_init__(self) -> None:
        check(self.max_distance > 0, self, "max_distance", "positive")


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig:
    """(q + u)·k + (q + v)·r with r a projection of the sinusoids of the distance. Source: arXiv 1901.02860."""

    kind: Literal["transformer_xl"] = "transformer_xl"


RelativePosition = AlibiConfig | T5BiasConfig | ShawConfig | TransformerXLConfig


@dataclass(frozen=True, kw_only=True)
class LearnedPositions:
    """A trained vector for each position, added to the embedding; position p has row p + offset of `rows`."""

    kind: Literal["learned"] = "learned"
    rows: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class SinusoidalPositions:
    """sin and cos of position / base^(2i / E), added to the embedding. Source: arXiv 1706.03762, section 3.5.

    interleaved: sin, cos, sin, cos… as in the paper; otherwise all sines, then all cosines.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = 10000.0
    interleaved: bool = True


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
    """Causal self-attention; `num_kv_heads` = num_heads is MHA, 1 is MQA, between is GQA (arXiv 2305.13245).

    A query at i sees the keys j ≤ i with i − j < window, or j < global_tokens, or in its random blocks; without a
    window all; with a chunk those of its own chunk, j // chunk = i // chunk. softcap: scores s become
    softcap · tanh(s / softcap). sinks: a learned score of each head that takes part of the softmax (arXiv 2309.17453).
    qkv_clip: queries, keys and values are clamped to ± qkv_clip.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool
    output_bias: bool
    rotary: RotaryConfig | None
    relative: RelativePosition | None = None
    qk_norm: QKNormConfig | None = None
    qkv_clip: float | None = None
    query_temperature: QueryTemperature | None = None
    softcap: float | None = None
    sinks: bool = False
    window: int | None = None
    chunk: int | None = None
    global_tokens: int = 0
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

    @property
    def sliding(self) -> bool:
        """Whether nothing but the last `window` keys is ever read."""
        return self.window is not None and not self.global_tokens and self.random_blocks is None


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
    """Attention and feed-forward, each a branch f added to the residual stream x, with c = residual_scale:

    norm_placement  pre: x + c·f(norm(x)) · post: norm(x + c·f(x)) · output: x + c·norm(f(x)) · sandwich: pre and output
    residual        serial: attention, then feed-forward · parallel: both from the same x, each with its own norm ·
                    parallel_one_norm: both from one norm of x (GPT-J)
    """

    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    norm: NormConfig
    norm_placement: Literal["pre", "post", "output", "sandwich"] = "pre"
    residual: Literal["serial", "parallel", "parallel_one_norm"] = "serial"
    residual_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.residual != "serial":
            check(self.norm_placement != "post", self, "norm_placement", "pre, output or sandwich in a parallel block")
        if self.residual == "parallel_one_norm":
            check(self.norm_placement == "pre", self, "norm_placement", "'pre' where one norm serves both branches")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only language model.

    context_length: how many positions the model may see; position tables have that many rows.
    tied_head: the output projection is the embedding table itself, one copy of it.
    embedding_scale: token embeddings are multiplied by it before positions are added; embedding_norm: their sum is
    normalised. final_norm: None where the blocks end with a norm. logits: softcap(logit_scale · head(x)).
    """

    vocab_size: int
    hidden_size: int
    context_length: int
    blocks: tuple[BlockConfig, ...]
    final_norm: NormConfig | None
    tied_head: bool
    head_bias: bool = False
    embedding_scale: float = 1.0
    position_embedding: LearnedPositions | SinusoidalPositions | None = None
    embedding_norm: NormConfig | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        for field in ("vocab_size", "hidden_size", "context_length"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(len(self.blocks) > 0, self, "blocks", "at least one block")
        check(not (self.head_bias and self.tied_head), self, "head_bias", "False where the head is tied")
        check(self.logit_softcap is None or self.logit_softcap > 0, self, "logit_softcap", "positive, or None")
        positions = self.position_embedding
        if isinstance(positions, LearnedPositions):
            enough = positions.rows - positions.offset >= self.context_length
            check(enough, self, "position_embedding", f"given a row for each of {self.context_length} positions")
        if isinstance(positions, SinusoidalPositions) or any(
            isinstance(block.attention.relative, TransformerXLConfig) for block in self.blocks
        ):
            check(self.hidden_size % 2 == 0, self, "hidden_size", "even where positions are sinusoidal")
        # Every client reads one number of heads and one head_dim for the whole cache (DESIGN's tensor contract).
        geometries = {(block.attention.num_kv_heads, block.attention.head_dim) for block in self.blocks}
        check(len(geometries) == 1, self, "blocks", "of one cache geometry (num_kv_heads and head_dim)")

    @property
    def cache_geometry(self) -> CacheGeometry:
        """The shape of the key/value cache."""
        attention = self.blocks[0].attention
        return CacheGeometry(
            num_layers=len(self.blocks), num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim
        )

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The most tokens that each layer ever looks back on; None for all of the context."""
        attentions = [block.attention for block in self.blocks]
        return tuple(attention.window if attention.sliding else None for attention in attentions)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data. Runs of equal blocks are written once, with how often they repeat."""
        data = schema.fields_to_json(self)
        data["blocks"] = [
            {"repeat": len(list(run)), "block": schema.to_json(block)} for block, run in groupby(self.blocks)
        ]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], path: str = "") -> "ModelConfig":
        """Read what `to_json` made. Raises ConfigError naming the field that is wrong."""
        try:
            blocks = [block for run in data["blocks"] for block in [run["block"]] * run["repeat"]]
        except (KeyError, TypeError):
            raise ConfigError("a ModelConfig needs blocks: a list of {repeat: number, block: {…}}.") from None
        return schema.fields_from_json(cls, data | {"blocks": blocks}, path)
