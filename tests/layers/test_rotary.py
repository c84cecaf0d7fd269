"""Rotary embeddings by negative angles."""

import pytest
import torch

from edgeformer import ops
from edgeformer.config import RotaryConfig, YarnScaling
from edgeformer.layers import rotary_table

YARN = YarnScaling(
    factor=4.0, attention_factor=1.3, beta_fast=32, beta_slow=1, original_context_length=8, truncate=True
)


def rotated(x, interleaved, **options):
    """Return x [B, S, D] of one head, rotated at positions 0, 1, 2…"""
    config = RotaryConfig(rotary_dim=x.shape[-1], base=100.0, interleaved=interleaved, **options)
    positions = torch.arange(x.shape[1]).unsqueeze(0)
    return ops.rotary_embedding(x, positions, *rotary_table(config, x.shape[1]), 1, interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_backward_undoes_rotation(interleaved):
    x = torch.randn(1, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    forward = rotated(x, interleaved, scaling=None)
    assert (rotated(forward, interleaved, scaling=None, backward=True) - x).abs().max() < 1e-14
    assert (rotated(forward, interleaved, scaling=None) - x).abs().max() > 0.1


def test_rotation_backward_keeps_the_attention_factor():
    x = torch.ones(1, 9, 8, dtype=torch.float64)
    norms = rotated(x, False, scaling=YARN, backward=True).norm(dim=-1)
    assert torch.allclose(norms, 1.3 * x.norm(dim=-1), rtol=1e-14)
