"""RMSNorm and its fused form with the residual addition."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Scale each vector to unit root mean square: x / sqrt(mean(x²) + epsilon) · weight.

    x [..., E], weight [E] (None: one) → [..., E]. Epsilon stands inside the root. Source: arXiv 1910.07467;
    `LlamaRMSNorm`.
    """
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return normed if weight is None else normed * weight


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("edgeformer::skip_rms_norm", mutates_args=())
def skip_rms_norm(x: Tensor, skip: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Add the residual and normalise: returns rms_norm(x + skip) and x + skip, both [..., E]."""
    total = x + skip
    return rms_norm(total, weight, epsilon), total


@skip_rms_norm.register_fake
def _(x: Tensor, skip: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)
