"""The feed-forward network of a block."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import FeedForwardConfig
from edgeformer.layers.linear import make_linear
from edgeformer.ops.activation import activate, clamped, scaled, up_factor


class XIELU(nn.Module):
    """xIELU with trained slopes, for all features of a layer.

    alpha_p · x² + beta · x for x > 0, else alpha_n · (exp(min(x, eps)) − 1 − x) + beta · x, with
    alpha_p = softplus(stored alpha_p) and alpha_n = beta + softplus(stored alpha_n). Source: arXiv 2411.13010;
    beta and eps, a negative number close to 0, are what the checkpoint stores (transformers/activations.py).
    """

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.alpha_p = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.alpha_n = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.beta = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.eps = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of every element of x."""
        positive, negative = _softplus(self.alpha_p), self.beta + _softplus(self.alpha_n)
        below = torch.exp(torch.minimum(x, self.eps)) - 1 - x
        return torch.where(x > 0, positive * x * x, negative * below) + self.beta * x


def _softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), which does not overflow; F.softplus is a dozen nodes in the graph."""
    return F.relu(x) + torch.log(1 + torch.exp(-x.abs()))


def _without_small(x: Tensor, cutoff: float) -> Tensor:
    """Return relu(x − mean(x) − cutoff · deviation(x)) of the last dimension; see `FeedForwardConfig.sparsity`."""
    centred = x - x.mean(-1, keepdim=True)
    return F.relu(centred - cutoff * torch.sqrt((centred * centred).mean(-1, keepdim=True)))


class FeedForward(nn.Module):
    """The network that `FeedForwardConfig` describes."""

    def __init__(self, config: FeedForwardConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        inner = config.intermediate_size
        linear = make_linear(config.clamped, dtype)
        self.gate = linear(hidden_size, inner, bias=config.bias) if config.gated else None
        self.up = linear(hidden_size, inner, bias=config.bias)
        self.down = linear(inner, hidden_size, bias=config.down_bias)
        if config.activation == "xielu":
            self.activation = XIELU(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [B, S, E] for x [B, S, E]; the intermediate states are [B, S, F]."""
        config = self.config
        if self.gate is None:
            return scaled(self.down(self._activated(self.up(x))), config.output_scale)
        gate, up = clamped(scaled(self.gate(x), config.gate_scale), self.up(x), config.limit)
        gate = _without_small(gate, config.cutoff) if config.sparsity else gate
        inner = self._activated(gate) * up_factor(up, config.up_activation, config.beta, config.up_offset)
        return scaled(self.down(inner), config.output_scale)

    def _activated(self, x: Tensor) -> Tensor:
        config = self.config
        if config.activation == "xielu":
            activated: Tensor = self.activation(x)
            return activated
        return activate(config.activation, x, config.beta)
