"""Normalization of the last dimension: the kinds that `NormConfig` describes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.config import NormConfig


class _Norm(nn.Module):
    """Weight and bias of `shape`, whose last dimension is normalized. With [H, D] every head has its own weight."""

    def __init__(self, config: NormConfig, shape: tuple[int, ...], dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.ones(shape, dtype=dtype)) if config.weight else None
        self.bias = nn.Parameter(torch.zeros(shape, dtype=dtype)) if config.bias else None

    def scale(self) -> Tensor | None:
        """Return the weight that multiplies: the stored one plus `NormConfig.offset`."""
        return self.weight + self.config.offset if self.weight is not None and self.config.offset else self.weight


class RMSNorm(_Norm):
    """RMSNorm; see `ops.rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., E] normalized."""
        weight = self.scale()
        if weight is None or weight.dim() == 1:
            return ops.rms_norm(x, weight, self.config.eps)
        return ops.rms_norm(x, None, self.config.eps) * weight


class LayerNorm(_Norm):
    """LayerNorm: (x − mean(x)) / sqrt(var(x) + eps) · weight + bias, with the biased variance of the vector."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., E] normalized."""
        weight, size = self.scale(), x.shape[-1:]
        if weight is None or weight.dim() == 1:
            return F.layer_norm(x, size, weight, self.bias, self.config.eps)
        normed = F.layer_norm(x, size, eps=self.config.eps) * weight
        return normed if self.bias is None else normed + self.bias


class BatchNorm(_Norm):
    """BatchNorm in inference: every feature has a fixed scale and shift, from the statistics of the training."""

    def __init__(self, config: NormConfig, shape: tuple[int, ...], dtype: torch.dtype):
        super().__init__(config, shape, dtype)
        self.running_mean = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
        self.running_var = nn.Parameter(torch.ones(shape, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., E] normalized."""
        normed = (x - self.running_mean) * torch.rsqrt(self.running_var + self.config.eps)
        weight = self.scale()
        normed = normed if weight is None else normed * weight
        return normed if self.bias is None else normed + self.bias


class Affine(_Norm):
    """No normalization at all: weight and bias of every feature (NoNorm in arXiv 2004.02984)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., E] scaled and shifted."""
        weight = self.scale()
        scaled = x if weight is None else x * weight
        return scaled if self.bias is None else scaled + self.bias


KINDS = {"rms_norm": RMSNorm, "layer_norm": LayerNorm, "batch_norm": BatchNorm, "affine": Affine}


def make_norm(config: NormConfig | None, *shape: int, dtype: torch.dtype) -> nn.Module:
    """Return the norm that `config` describes, for vectors of shape[-1] elements; the identity for None."""
    return nn.Identity() if config is None else KINDS[config.kind](config, shape, dtype)
