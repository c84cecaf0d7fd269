"""What a model is: a tree of small frozen dataclasses, independent of torch and of any checkpoint format.

Behaviour is carried by fields, never by a model's name. A decoder is a list of `BlockConfig`, so that layers may
differ. Every field that changes the maths is required, so that nothing is decided silently; a `families` reader fills
them all.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from edgeformer import schema
from edgeformer.contract import CacheGeometry
from edgeformer.errors import ConfigError
from edgeformer.schema import check

Activation = Literal["silu", "relu", "gelu", "gelu_tanh"]


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
class NormConfig:
    """y = x / sqrt(mean(x²) + eps) · weight. Source: arXiv 1910.07467."""

    kind: Literal["rms_norm"] = "rms_norm"
    eps: float

    def __post_init__(self) -> None:
        check(self.eps >= 0, self, "eps", "zero or positive")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Causal self-attention; `num_kv_heads` = num_heads is MHA, 1 is MQA, between is GQA (arXiv 2305.13245)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool
    output_bias: bool
    rotary: RotaryConfig | None

    def __post_init__(self) -> None:
        check(self.num_heads > 0, self, "num_heads", "positive")
        check(self.head_dim > 0, self, "head_dim", "positive")
        divides = self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads == 0
        check(divides, self, "num_kv_heads", f"a divisor of num_heads ({self.num_heads})")
        if self.rotary is not None and self.rotary.rotary_dim > self.head_dim:
            check(False, self, "rotary", f"no wider than head_dim ({self.head_dim})")


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """down(activation(gate(x)) · up(x)): the gated forms of arXiv 2002.05202; SwiGLU where activation is silu."""

    intermediate_size: int
    activation: Activation
    bias: bool

    def __post_init__(self) -> None:
        check(self.intermediate_size > 0, self, "intermediate_size", "positive")


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    norm: NormConfig


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only language model.

    context_length: how many positions the model may see; position tables have that many rows.
    tied_head: the output projection is the embedding table itself, one copy of it.
    """

    vocab_size: int
    hidden_size: int
    context_length: int
    blocks: tuple[BlockConfig, ...]
    final_norm: NormConfig
    tied_head: bool

    def __post_init__(self) -> None:
        for field in ("vocab_size", "hidden_size", "context_length"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(len(self.blocks) > 0, self, "blocks", "at least one block")
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
