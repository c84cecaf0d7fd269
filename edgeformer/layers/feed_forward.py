"""The feed-forward network of a block."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import FeedForwardConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    """down(activation(gate(x)) · up(x))."""

    def __init__(self, config: FeedForwardConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.gate = nn.Linear(hidden_size, config.intermediate_size, bias=config.bias, dtype=dtype)
        self.up = nn.Linear(hidden_size, config.intermediate_size, bias=config.bias, dtype=dtype)
        self.down = nn.Linear(config.intermediate_size, hidden_size, bias=config.bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, E] → [B, S, E]."""
        return self.down(self.activation(self.gate(x)) * self.up(x))
