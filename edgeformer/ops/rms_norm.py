"""RMSNorm and its fused form with the residual addition."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x²) + epsilon) · weight, [..., E]: each vector scaled to a root mean square of one.

    x        [..., E]
    weight   [E]; None is one
    epsilon  added inside the root

    Source: arXiv 1910.07467; `LlamaRMSNorm` of transformers.
    """
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return normed if weight is None else normed * weight


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("edgeformer::skip_rms_norm", mutates_args=())
def skip_rms_norm(x: Tensor, skip: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return rms_norm(x + skip) and x + skip, both [..., E]; see `rms_norm`."""
    total = x + skip
    return rms_norm(total, weight, epsilon), total


@skip_rms_norm.register_fake
def _(x: Tensor, skip: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)
