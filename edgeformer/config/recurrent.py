"""Configs of recurrent layers, which keep a state of fixed size instead of keys and values."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.contract.tensors import ConvState, RecurrentState, State
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class ShortConvConfig:
    """LFM2's gated short convolution: output(c · conv(b · x)), with b, c and x projected from the input.

    The convolution is causal and depthwise. Source: `Lfm2ShortConv` of transformers.

    Attributes:
        kernel_size: tokens that the convolution reads, the current one included.
        bias: of the projections and of the convolution.
    """

    kind: Literal["short_conv"] = "short_conv"
    channels: int
    kernel_size: int
    bias: bool

    def __post_init__(self) -> None:
        check(self.channels > 0, self, "channels", "positive")
        check(self.kernel_size > 1, self, "kernel_size", "at least 2")

    @property
    def projected_size(self) -> int:
        """Return the elements that the input is projected to: b, c and x."""
        return 3 * self.channels

    @property
    def inner_size(self) -> int:
        """Return the elements that the output is projected from."""
        return self.channels

    @property
    def states(self) -> tuple[State, ...]:
        """Return what the layer keeps between runs."""
        return (ConvState(channels=self.channels, width=self.kernel_size - 1),)


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig:
    """Gated DeltaNet: linear attention by the gated delta rule, behind a causal convolution (arXiv 2412.06464).

    Queries, keys and values pass through one convolution and silu. Queries and keys are scaled to a length of one; the
    decay is −exp(decay_rate_log) · softplus(decay(x) + step_bias), β is sigmoid(beta(x)), and the output is
    output(rms_norm(attended) · silu(gate(x))), each head normalized by itself. Source: `Qwen3NextGatedDeltaNet` and
    `Qwen3_5GatedDeltaNet` of transformers.

    Attributes:
        num_key_heads: heads of queries and of keys; each serves num_value_heads / num_key_heads heads of values.
        key_dim, value_dim: sizes of a head.
        kernel_size: tokens that the convolution reads, the current one included.
        length_eps: added to the squared length of queries and keys, inside the root.
        norm_eps: epsilon of the norm of the output.
    """

    kind: Literal["delta_net"] = "delta_net"
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int
    norm_eps: float
    length_eps: float = 1e-6

    def __post_init__(self) -> None:
        for field in ("num_key_heads", "key_dim", "value_dim", "norm_eps", "length_eps"):
            check(getattr(self, field) > 0, self, field, "positive")
        divides = self.num_value_heads > 0 and self.num_value_heads % self.num_key_heads == 0
        check(divides, self, "num_value_heads", f"a multiple of num_key_heads ({self.num_key_heads})")
        check(self.kernel_size > 1, self, "kernel_size", "at least 2")

    @property
    def key_size(self) -> int:
        """Return the elements of all keys of a token."""
        return self.num_key_heads * self.key_dim

    @property
    def inner_size(self) -> int:
        """Return the elements of all values of a token, which the output is projected from."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Return the channels of the convolution: queries, keys, values."""
        return 2 * self.key_size + self.inner_size

    @property
    def projected_size(self) -> int:
        """Return the elements that the input is projected to: queries, keys, values, gate, β and decay."""
        return self.channels + self.inner_size + 2 * self.num_value_heads

    @property
    def states(self) -> tuple[State, ...]:
        """Return what the layer keeps between runs."""
        return (
            ConvState(channels=self.channels, width=self.kernel_size - 1),
            RecurrentState(num_heads=self.num_value_heads, key_dim=self.key_dim, value_dim=self.value_dim),
        )


@dataclass(frozen=True, kw_only=True)
class StateSpaceConfig:
    """Mamba-2: a selective state space per head, behind a causal convolution (arXiv 2405.21060).

    The input is projected to a gate z, x, B, C and a step Δ per head; x, B and C pass through one convolution and silu.
    With Δ ← clip(softplus(Δ + step_bias)) and A = −exp(decay_rate_log), the state of a head becomes
    exp(Δ·A) · state + B ⊗ (Δ·x), and y is its product with C, plus skip · x. The output is output(norm(y, z)). Source:
    `Mamba2Mixer`, `BambaMixer` and `FalconH1Mixer` of transformers.

    Attributes:
        state_size: elements of B and of C.
        num_groups: B and C are shared by num_heads / num_groups heads.
        kernel_size: tokens that the convolution reads, the current one included.
        input_bias, conv_bias, output_bias: biases of the projection, of the convolution and of the output.
        norm_eps: epsilon of an RMSNorm of y; None without a norm.
        norm_groups: parts of y that are normalized by themselves.
        norm_before_gate: norm(y) · silu(z) instead of norm(y · silu(z)).
        min_step, max_step: bounds of Δ; None for no upper one.
        input_scale: factor of the input. part_scales: factors of z, x, B, C and Δ. output_scale: factor of the output.
    """

    kind: Literal["state_space"] = "state_space"
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    kernel_size: int
    input_bias: bool
    conv_bias: bool
    output_bias: bool
    norm_eps: float | None
    norm_groups: int = 1
    norm_before_gate: bool = False
    min_step: float = 0.0
    max_step: float | None = None
    input_scale: float = 1.0
    part_scales: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)
    output_scale: float = 1.0

    def __post_init__(self) -> None:
        for field in ("num_heads", "head_dim", "state_size"):
            check(getattr(self, field) > 0, self, field, "positive")
        divides = self.num_groups > 0 and self.num_heads % self.num_groups == 0
        check(divides, self, "num_groups", f"a divisor of num_heads ({self.num_heads})")
        check(self.kernel_size > 1, self, "kernel_size", "at least 2")
        check(self.norm_eps is None or self.norm_eps >= 0, self, "norm_eps", "zero or positive, or None")
        divides = self.norm_groups > 0 and self.inner_size % self.norm_groups == 0
        check(divides, self, "norm_groups", f"a divisor of num_heads · head_dim ({self.inner_size})")
        if self.norm_eps is None:
            check(self.norm_groups == 1, self, "norm_groups", "1 where there is no norm")
            check(not self.norm_before_gate, self, "norm_before_gate", "False where there is no norm")
        check(self.min_step >= 0, self, "min_step", "zero or positive")
        check(self.max_step is None or self.max_step > self.min_step, self, "max_step", "above min_step, or None")
        check(len(self.part_scales) == 5, self, "part_scales", "given five factors: of z, x, B, C and Δ")

    @property
    def inner_size(self) -> int:
        """Return the elements of x, which the output is projected from."""
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Return the channels of the convolution: x, B and C."""
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def projected_size(self) -> int:
        """Return the elements that the input is projected to: z, x, B, C and Δ."""
        return self.inner_size + self.channels + self.num_heads

    @property
    def states(self) -> tuple[State, ...]:
        """Return what the layer keeps between runs."""
        return (
            ConvState(channels=self.channels, width=self.kernel_size - 1),
            RecurrentState(name="ssm", num_heads=self.num_heads, key_dim=self.state_size, value_dim=self.head_dim),
        )


RecurrentConfig = ShortConvConfig | DeltaNetConfig | StateSpaceConfig
