"""Configs of recurrent layers, which keep a state of fixed size instead of keys and values."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.contract import ConvState, State
from edgeformer.schema import check


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
    def states(self) -> tuple[State, ...]:
        """Return what the layer keeps between runs."""
        return (ConvState(channels=self.channels, width=self.kernel_size - 1),)


RecurrentConfig = ShortConvConfig
