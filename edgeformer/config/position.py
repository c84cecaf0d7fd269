"""Config of positions: vectors added to embeddings, rotary embeddings of queries and keys, biases by distance."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Position interpolation: every frequency is divided by `factor`. Source: arXiv 2306.15595."""

    kind: Literal["linear"] = "linear"
    factor: float

    def __post_init__(self) -> None:
        check(self.factor > 0, self, "factor", "positive")


@dataclass(frozen=True, kw_only=True)
class ProportionalScaling:
    """Partial rotation: the first `fraction` of the pairs rotate, at frequencies spread over the whole head.

    The other pairs have frequency 0. All frequencies are divided by `factor`. Source: `rope_type` "proportional" of
    transformers' modeling_rope_utils.py.
    """

    kind: Literal["proportional"] = "proportional"
    factor: float
    fraction: float

    def __post_init__(self) -> None:
        check(self.factor > 0, self, "factor", "positive")


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Frequencies of long wavelengths are divided by `factor`, those of short ones are kept, with a ramp between.

    Source: Llama 3.1's reference code.
    """

    kind: Literal["llama3"] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int

    def __post_init__(self) -> None:
        check(self.factor > 0, self, "factor", "positive")
        check(self.high_freq_factor > self.low_freq_factor, self, "high_freq_factor", "larger than low_freq_factor")


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN: NTK-by-parts interpolation with an attention temperature. Source: arXiv 2309.00071, section 3.4."""

    kind: Literal["yarn"] = "yarn"
    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_context_length: int
    truncate: bool

    def __post_init__(self) -> None:
        check(self.factor > 0, self, "factor", "positive")


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE: one divisor per frequency, found by search. Source: arXiv 2402.13753."""

    kind: Literal["longrope"] = "longrope"
    factors: tuple[float, ...]
    attention_factor: float


RotaryScaling = LinearScaling | ProportionalScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """Rotary position embedding: pairs of elements of each head are rotated by angles that grow with the position.

    Source: arXiv 2104.09864.

    Attributes:
        rotary_dim: the leading elements of each head that are rotated.
        base: pair i rotates by position · base^(−2i / rotary_dim) radians.
        interleaved: pairs are neighbours, (0, 1), (2, 3)…; otherwise element i pairs with i + rotary_dim / 2.
        scaling: how frequencies are changed for long contexts.
        backward: pairs rotate by negative angles.
        halves: True where each half of a head turns by itself, as a head does: the first by the column of a patch, the
            second by its row (Gemma 4). None where heads turn as a whole.
    """

    rotary_dim: int
    base: float
    interleaved: bool
    scaling: RotaryScaling | None
    backward: bool = False
    halves: bool | None = None

    def __post_init__(self) -> None:
        check(self.rotary_dim > 0 and self.rotary_dim % 2 == 0, self, "rotary_dim", "a positive even number")
        check(self.base > 0, self, "base", "positive")
        if isinstance(self.scaling, LongRopeScaling) and len(self.scaling.factors) != self.rotary_dim // 2:
            check(False, self, "scaling", f"given {self.rotary_dim // 2} factors, one for each pair")


@dataclass(frozen=True, kw_only=True)
class RotaryAxes:
    """Positions of several axes (M-RoPE): pairs of a rotary embedding turn by time, by height or by width.

    A token of a text has the same position on all axes, so that it turns as by one. Source: arXiv 2409.12191, section
    2.1; interleaved: transformers' modeling_qwen3_vl.py.

    Attributes:
        sections: pairs of each axis: time, height, width; further ones begin again with time.
        interleaved: axes take turns pair by pair, as far as they have pairs; time has the rest. Otherwise the pairs of
            an axis follow each other.
    """

    sections: tuple[int, ...]
    interleaved: bool

    def __post_init__(self) -> None:
        fits = len(self.sections) >= AXES and all(count >= 0 for count in self.sections)
        check(fits, self, "sections", f"numbers of pairs of {AXES} axes or more")
        if self.interleaved:
            last = max(AXES * (self.sections[axis] - 1) + axis for axis in range(1, AXES))
            check(len(self.sections) == AXES and last < self.pairs, self, "sections", "three that can take turns")

    @property
    def pairs(self) -> int:
        """Return the number of pairs."""
        return sum(self.sections)

    @property
    def of_pairs(self) -> tuple[int, ...]:
        """Return the axis of each pair: 0 time, 1 height, 2 width."""
        if not self.interleaved:
            return tuple(index % AXES for index, count in enumerate(self.sections) for _ in range(count))
        return tuple(pair % AXES if pair < AXES * self.sections[pair % AXES] else 0 for pair in range(self.pairs))


AXES = 3
"""Axes of positions: time, height, width."""


@dataclass(frozen=True, kw_only=True)
class AlibiConfig:
    """ALiBi: each head adds its slope · (key position − query position) to scores. Source: arXiv 2108.12409."""

    kind: Literal["alibi"] = "alibi"
    slopes: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class T5BiasConfig:
    """T5's relative position bias: a learned bias per head and bucket of distance. Source: arXiv 1910.10683.

    Small distances have a bucket each, larger ones share logarithmic buckets. Blocks with equal configs share one
    table of biases, as in T5.

    Attributes:
        bidirectional: half of the buckets are for keys after the query.
        table: a number that makes the configs of two tables differ.
    """

    kind: Literal["t5_bias"] = "t5_bias"
    num_buckets: int
    max_distance: int
    bidirectional: bool = False
    table: int = 0

    def __post_init__(self) -> None:
        least = 4 if self.bidirectional else 2  # one bucket of a single distance in each direction
        check(self.num_buckets >= least, self, "num_buckets", f"{least} at least")
        reach = self.num_buckets // least
        check(self.max_distance > reach, self, "max_distance", f"more than the {reach} buckets of one distance each")


@dataclass(frozen=True, kw_only=True)
class ShawConfig:
    """Shaw's relation vectors: one per clipped distance, added to keys and, if `values`, to values, too.

    Source: arXiv 1803.02155.
    """

    kind: Literal["shaw"] = "shaw"
    max_distance: int
    values: bool

    def __post_init__(self) -> None:
        check(self.max_distance > 0, self, "max_distance", "positive")


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig:
    """Transformer-XL's scores (q + u)·k + (q + v)·r, where r is a projection of the sinusoids of the distance.

    Source: arXiv 1901.02860.
    """

    kind: Literal["transformer_xl"] = "transformer_xl"


@dataclass(frozen=True, kw_only=True)
class DisentangledConfig:
    """DeBERTa's disentangled attention: scores (q_i·k_j + q_i·K(i − j) + Q(i − j)·k_j) · scale.

    K and Q are projections, per block, of a table of relations [2·span, E] that all blocks share: distance d has row
    d + span, clipped to the table. Source: arXiv 2006.03654.

    Attributes:
        span: half of the table's rows.
        max_distance: distances of more than span / 2 share logarithmic rows up to this one; None: a row per distance.
        content_to_position, position_to_content: whether q_i·K and Q·k_j are part of the scores.
        shared_projections: K and Q are projected as keys and queries are; otherwise by matrices of their own.
        key_bias: whether the projection to K has a bias, if it is a matrix of its own.
        norm: normalizes the rows of the table.
    """

    kind: Literal["disentangled"] = "disentangled"
    span: int
    max_distance: int | None
    content_to_position: bool = True
    position_to_content: bool = True
    shared_projections: bool = False
    key_bias: bool = True
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        check(self.span > 1, self, "span", "more than 1")
        reaches = self.max_distance is None or self.max_distance - 1 > self.span // 2
        check(reaches, self, "max_distance", f"more than {self.span // 2 + 1}, or None")
        some = self.content_to_position or self.position_to_content
        check(some, self, "position_to_content", "True where content_to_position is False")


RelativePosition = AlibiConfig | T5BiasConfig | ShawConfig | TransformerXLConfig | DisentangledConfig


@dataclass(frozen=True, kw_only=True)
class LearnedPositions:
    """Learned position embeddings, added to token embeddings: position p has row p + offset of a table of `rows`."""

    kind: Literal["learned"] = "learned"
    rows: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class SinusoidalPositions:
    """Sinusoidal position embeddings: sin and cos of position / base^(2i / E), added to token embeddings.

    Source: arXiv 1706.03762, section 3.5.

    Attributes:
        interleaved: the order is sin, cos, sin, cos… as in the paper; otherwise all sines, then all cosines.
        to_base: exponents are 2i / (E − 2), so that the last one is 1, as in tensor2tensor's code.
        offset: position p counts as p + offset.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = 10000.0
    interleaved: bool = True
    to_base: bool = False
    offset: int = 0
