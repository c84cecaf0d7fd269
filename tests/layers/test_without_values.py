"""Modules of which names and shapes are wanted: no values are drawn for them, and nothing else changes."""

import torch
from torch import nn

from edgeformer.models.without_values import NothingInitialized, without_values


def layers():
    return nn.Sequential(nn.Linear(3, 4), nn.Embedding(5, 3), nn.LayerNorm(4), nn.Conv2d(1, 2, 3))


def test_shapes_are_known_and_nothing_is_drawn():
    expected = {name: each.shape for name, each in layers().named_parameters()}
    torch.manual_seed(0)
    with without_values():
        outlined = layers()
    assert {name: each.shape for name, each in outlined.named_parameters()} == expected
    assert all(each.is_meta and each.requires_grad for each in outlined.parameters())
    with NothingInitialized():
        layers()
        assert torch.equal(torch.ones(2), torch.full((2,), 1.0)), "other functions run as ever"
    after = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(3))
    # Negative control: torch's own layers draw numbers.
    layers()
    torch.manual_seed(0)
    layers()
    assert not torch.equal(after, torch.rand(3))
