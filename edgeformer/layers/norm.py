"""Normalisation."""

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import NormConfig


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension; see `ops.rms_norm`."""

    def __init__(self, config: NormConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.eps = config.eps
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """[..., E] → [..., E]."""
        return ops.rms_norm(x, self.weight, self.eps)
