"""Linear layers whose inputs and outputs are kept within bounds."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from edgeformer.config.feed_forward import BOUNDS


class ClampedLinear(nn.Linear):
    """A linear layer with learned bounds, a number each, of what it reads and of what it returns.

    Source: transformers' Gemma4ClippableLinear. A bound may be infinite.
    """

    input_min: nn.Parameter
    input_max: nn.Parameter
    output_min: nn.Parameter
    output_max: nn.Parameter

    def __init__(self, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype):
        super().__init__(inputs, outputs, bias=bias, dtype=dtype)
        for name in BOUNDS:
            setattr(self, name, nn.Parameter(torch.zeros(1, dtype=dtype)))

    def forward(self, input: Tensor) -> Tensor:
        """Return the output [..., outputs] for an input [..., inputs]."""
        return _within(
            super().forward(_within(input, self.input_min, self.input_max)), self.output_min, self.output_max
        )


def _within(x: Tensor, least: Tensor, most: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, least), most)


def make_linear(clamped: bool | None, dtype: torch.dtype) -> Callable[..., nn.Linear]:
    """Return what makes a linear layer of its inputs, outputs and `bias`. clamped: see `AttentionConfig`."""
    return partial(ClampedLinear if clamped else nn.Linear, dtype=dtype)
