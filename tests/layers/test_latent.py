"""Multi-head latent attention: its config, its costs, and the formula of its keys and values."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    LatentConfig,
    NormConfig,
    RotaryConfig,
)
from edgeformer.documents import schema
from edgeformer.errors import ConfigError
from edgeformer.layers.attention.latent import LatentProjections
from edgeformer.manifest.accounting import account

HEADS, HEAD_DIM, HIDDEN = 3, 16, 24
NORM = NormConfig(eps=1e-6)
LATENT = LatentConfig(rank=10, shared_dim=6, value_dim=13, norm=NORM, query_rank=14, scale=1.5, query_scale=0.5)
ATTENTION = AttentionConfig(
    num_heads=HEADS, num_kv_heads=HEADS, head_dim=HEAD_DIM, scale=0.25, qkv_bias=False, output_bias=True,
    rotary=RotaryConfig(rotary_dim=6, base=1e4, interleaved=True, scaling=None), latent=LATENT,
)  # fmt: skip
VARIANTS = {
    "short queries": ATTENTION,
    "biases": replace(ATTENTION, latent=replace(LATENT, bias=True)),
    "whole queries": replace(ATTENTION, latent=replace(LATENT, query_rank=None, query_scale=1.0, bias=True)),
}


def decoder(attention):
    block = BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(intermediate_size=20, activation="silu", bias=False),
        norm=NORM,
    )
    return DecoderConfig(
        vocab_size=31, hidden_size=HIDDEN, context_length=64, blocks=(block,) * 2, final_norm=NORM, tied_head=True
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_a_config_survives_json_and_is_counted(name):
    config = decoder(VARIANTS[name])
    assert schema.from_json(DecoderConfig, json.loads(json.dumps(schema.to_json(config)))) == config
    shapes = parameter_shapes(config)
    assert account(config).parameters == sum(map(math.prod, shapes.values()))
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2)
    assert account(config).flops_per_token == 2 * matrices  # the tied table is read once as the head


def test_the_cache_holds_all_heads():
    assert account(decoder(ATTENTION)).cache_bytes_per_token == 2 * 2 * HEADS * HEAD_DIM * 4


@pytest.mark.parametrize("name", VARIANTS)
def test_projections_follow_their_formula(name):
    attention = VARIANTS[name]
    latent = attention.latent
    torch.manual_seed(0)
    module = LatentProjections(attention, latent, HIDDEN, torch.float64)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 5, HIDDEN, dtype=torch.float64)
    query, key, value = module(x)
    short = module.norm(module.down(x)) * latent.scale
    queries = x if latent.query_rank is None else module.query_norm(module.query_down(x)) * latent.query_scale
    for head in range(HEADS):
        part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        keys, values = (matrix.weight.unflatten(0, (HEADS, -1))[head] for matrix in (module.key, module.value))
        assert torch.allclose(query[..., part], queries @ module.query.weight[part].T)
        assert torch.allclose(key[..., part], torch.cat((module.shared_key(x), short @ keys.T), -1))
        assert torch.allclose(value[..., part][..., :13], short @ values.T)
        assert not value[..., part][..., 13:].any()
    assert torch.equal(module.without_zeros(value), module.value(short))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(LATENT, rank=0), "LatentConfig.rank is 0; it must be positive."),
        (
            lambda: replace(LATENT, query_rank=None),
            "LatentConfig.query_scale is 0.5; it must be 1 without a query_rank.",
        ),
        (
            lambda: replace(ATTENTION, num_kv_heads=1),
            "num_kv_heads is 1; it must be num_heads (3) in latent attention.",
        ),
        (
            lambda: replace(ATTENTION, latent=replace(LATENT, value_dim=17)),
            "it must be given a value_dim of at most head_dim (16).",
        ),
        (
            lambda: replace(ATTENTION, latent=replace(LATENT, shared_dim=16)),
            "it must be given a shared_dim below head_dim (16).",
        ),
        (lambda: replace(ATTENTION, qkv_bias=True), "it must be None where projections have biases or clamps"),
    ],
)
def test_what_has_no_meaning_is_refused(make, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()
