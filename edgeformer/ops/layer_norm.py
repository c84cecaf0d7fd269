"""LayerNorm, fused with the residual addition before it."""

import torch
from torch import Tensor
from torch.nn import functional as F


@torch.library.custom_op("edgeformer::skip_layer_norm", mutates_args=())
def skip_layer_norm(
    x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return layer_norm(x + skip) · weight + bias, and x + skip, both [..., E].

    x, skip       [..., E]
    weight, bias  [E]; no bias is zero
    epsilon       added to the variance, inside the root

    Source: arXiv 1607.06450.
    """
    total = x + skip
    return F.layer_norm(total, total.shape[-1:], weight, bias, epsilon), total


@skip_layer_norm.register_fake
def _(x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)
