"""Config of a feed-forward network."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from edgeformer.documents.schema import check

Activation = Literal["identity", "relu", "relu_squared", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]

BOUNDS = ("input_min", "input_max", "output_min", "output_max")
"""Learned bounds of a linear layer that is clamped, a number each."""

LearnedActivation = Literal["xielu"]
"""Activations with parameters of their own."""


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """Feed-forward network: down(activation(up(x))), or gated: down(activation(gate(x)) · up_activation(up(x))).

    With up_activation identity, the gated form is GLU (activation sigmoid), Bilinear (identity), ReGLU (relu), GEGLU
    (gelu) or SwiGLU (silu); GTU is sigmoid with up_activation tanh. Source: arXiv 2002.05202.

    Attributes:
        bias: whether its layers have one. output_bias: the same of `down` alone; None for `bias`.
        activation: `xielu` has learned parameters per layer; see `edgeformer.layers.feed_forward.XIELU`.
        beta: silu is x · sigmoid(beta · x).
        limit: gated only; gate(x) is clamped to at most this and up(x) to ± this, before any activation. None for no
            limit. Source: `swiglu_limit` of gpt-oss, transformers' modeling_gpt_oss.py.
        up_offset: gated only; a number that is added to up_activation(up(x)).
        gate_scale: gated only; factor of gate(x), before any activation. output_scale: factor of the output.
        sparsity: gated only; the activation reads relu(g − mean(g) − q · deviation(g)) of g = gate(x), with q the
            `sparsity` quantile of a normal distribution, so that about this fraction of g is 0. 0: g itself. Source:
            arXiv 2506.06644 (Spark Transformer), section 3; transformers' modeling_gemma3n.py.
        clamped: as in `AttentionConfig`.
    """

    intermediate_size: int
    activation: Literal[Activation, LearnedActivation]
    bias: bool
    output_bias: bool | None = None
    gated: bool = True
    up_activation: Activation = "identity"
    beta: float = 1.0
    limit: float | None = None
    up_offset: float = 0.0
    gate_scale: float = 1.0
    output_scale: float = 1.0
    sparsity: float = 0.0
    clamped: bool | None = None

    @property
    def down_bias(self) -> bool:
        """Return whether `down` has a bias."""
        return self.bias if self.output_bias is None else self.output_bias

    @property
    def cutoff(self) -> float:
        """Return q of `sparsity`, in standard deviations."""
        return NormalDist().inv_cdf(self.sparsity)

    def __post_init__(self) -> None:
        check(self.intermediate_size > 0, self, "intermediate_size", "positive")
        check(self.limit is None or self.limit > 0, self, "limit", "positive, or None")
        check(0 <= self.sparsity < 1, self, "sparsity", "a fraction below 1")
        if not self.gated:
            check(self.sparsity == 0, self, "sparsity", "0 where nothing is gated")
            check(self.up_activation == "identity", self, "up_activation", "'identity' where nothing is gated")
            check(self.limit is None, self, "limit", "None where nothing is gated")
            check(self.up_offset == 0, self, "up_offset", "0 where nothing is gated")
            check(self.gate_scale == 1, self, "gate_scale", "1 where nothing is gated")
        if "silu" not in (self.activation, self.up_activation):
            check(self.beta == 1, self, "beta", "1 where no activation is silu")
