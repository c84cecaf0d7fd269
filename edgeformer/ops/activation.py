"""Activations of feed-forward networks, in plain torch: no ops of their own, because ONNX has primitives for them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from edgeformer.config import Activation

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


def clamped(gate: Tensor, up: Tensor, limit: float | None) -> tuple[Tensor, Tensor]:
    """Return gate and up of a gated network within `FeedForwardConfig.limit`."""
    return (gate, up) if limit is None else (gate.clamp(max=limit), up.clamp(-limit, limit))


def up_factor(up: Tensor, up_activation: Activation, beta: float, up_offset: float) -> Tensor:
    """Return up_activation(up) + up_offset, by which the activated gate is multiplied."""
    factor = activate(up_activation, up, beta)
    return factor + up_offset if up_offset else factor


def scaled(x: Tensor, scale: float) -> Tensor:
    """Return x · scale, and x itself where scale is 1, so that a graph has no node for it."""
    return x if scale == 1 else x * scale
