"""The feed-forward network of a block."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import Activation, FeedForwardConfig

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def activate(activation: Activation, x: Tensor, beta: float = 1.0) -> Tensor:
    """Apply an activation to every element; `beta` changes silu only, to x · sigmoid(beta · x)."""
    if activation == "silu" and beta != 1:
        return x * torch.sigmoid(beta * x)
    return ACTIVATIONS[activation](x)


class FeedForward(nn.Module):
    """The network that `FeedForwardConfig` describes."""

    def __init__(self, config: FeedForwardConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        inner = config.intermediate_size
        self.gate = nn.Linear(hidden_size, inner, bias=config.bias, dtype=dtype) if config.gated else None
        self.up = nn.Linear(hidden_size, inner, bias=config.bias, dtype=dtype)
        self.down = nn.Linear(inner, hidden_size, bias=config.bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [B, S, E] for x [B, S, E]; the intermediate states are [B, S, F]."""
        config = self.config
        if self.gate is None:
            return self.down(activate(config.activation, self.up(x), config.beta))
        gate = activate(config.activation, self.gate(x), config.beta)
        return self.down(gate * activate(config.up_activation, self.up(x), config.beta))
