"""Worked examples of blocks: placement of norms, parallel residuals, windows per layer, numbers of parameters."""

import json

import torch
from study_notes import (
    attention_config,
    block_config,
    decoder,
    dependence,
    empty_cache,
    from_the_start,
    given,
    model_config,
    seeded,
    tensor,
)

from edgeformer.config import DecoderConfig, FeedForwardConfig, RotaryConfig, SinusoidalPositions
from edgeformer.documents import schema
from edgeformer.layers import Block
from edgeformer.manifest.accounting import account

X = torch.randn(1, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


class Branches:
    """Return a block and its parts: `norm1` and `attention`, `norm2` and `mlp` as functions of x alone."""

    def __init__(self, **fields):
        self.config = block_config(attention_config(), **fields)
        self.block = seeded(Block(self.config, 4, torch.float64))
        self.norm1, self.norm2, self.mlp = (
            self.block.attention_norm, self.block.feed_forward_norm, self.block.feed_forward,
        )  # fmt: skip

    def attention(self, x):
        return self.block.attention(x, empty_cache(self.config.attention), from_the_start(6))[0]

    def __call__(self, x):
        return self.block(x, empty_cache(self.config.attention), from_the_start(6))[0]


def test_post_norm_normalises_the_sum():
    """x_out = LayerNorm(x + Sublayer(x)), attention first, then the feed-forward network."""
    b = Branches(norm_placement="post")
    h = b.norm1(X + b.attention(X))
    assert torch.allclose(b(X), b.norm2(h + b.mlp(h)))


def test_pre_norm_normalises_what_a_branch_reads():
    """x_out = x + Sublayer(LayerNorm(x)), for both in turn."""
    b = Branches()
    h = X + b.attention(b.norm1(X))
    assert torch.allclose(b(X), h + b.mlp(b.norm2(h)))
    # As one formula a note has y = x + MLP(LN(x + Attention(LN(x)))): there, what attention adds to x is lost.
    assert not torch.allclose(b(X), X + b.mlp(b.norm2(h)))


def test_the_placements_differ_in_what_leaves_a_block():
    """Behind post-norm every vector has mean 0 and variance 1; in pre-norm the stream x passes on as it is."""
    post, pre = Branches(norm_placement="post"), Branches()
    for norm in (post.norm1, post.norm2):
        given(norm, {"weight": tensor(1, 1, 1, 1), "bias": tensor(0, 0, 0, 0)})
    assert post(X).mean(-1).abs().max() < 1e-12
    assert torch.allclose(post(X).var(-1, correction=0), torch.ones(1, 6, dtype=torch.float64), atol=1e-3)
    # With branches that add nothing:
    for b in (post, pre):
        for silent in (b.block.attention.output.weight, b.mlp.down.weight, b.mlp.down.bias):
            silent.zero_()
    assert torch.allclose(pre(X), X)
    assert torch.allclose(post(X), post.norm1(X), atol=1e-3) and not torch.allclose(post(X), X, atol=1e-3)


def test_parallel_branches():
    """y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x)): both read the same x, with one norm for both or two."""
    b = Branches(residual="parallel_one_norm")
    assert torch.allclose(b(X), X + b.mlp(b.norm1(X)) + b.attention(b.norm1(X)))
    h = X + b.attention(b.norm1(X))
    assert not torch.allclose(b(X), h + b.mlp(b.norm1(h)))  # in series
    b = Branches(residual="parallel")
    assert torch.allclose(b(X), X + b.mlp(b.norm2(X)) + b.attention(b.norm1(X)))


def four_layers():
    """One block of full attention without positions, three of rotary attention in a sliding window of two tokens."""
    rotary = RotaryConfig(rotary_dim=4, base=10_000.0, interleaved=False, scaling=None)
    full = block_config(attention_config())
    window = block_config(attention_config(rotary=rotary, window=2))
    return full, window


def test_layers_in_groups_of_four():
    """Of four, "the lowest has full attention and no positions, the three above RoPE and a sliding window".

    A model is a list of blocks, so the full one may stand anywhere; Llama 4 has it last of its four.
    """
    full, window = four_layers()
    config = model_config(*(full, window, window, window) * 2)
    written = schema.to_json(config)
    assert [run["repeat"] for run in written["blocks"]] == [1, 3, 1, 3]
    assert schema.from_json(DecoderConfig, json.loads(json.dumps(written))) == config
    assert [block.attention.window for block in config.blocks] == [None, 2, 2, 2] * 2


def test_short_and_long_range():
    """Windows join near tokens: three of them, each one token back, reach 3; one full block is enough to reach all."""
    full, window = four_layers()
    near = dependence(decoder(model_config(window, window, window)), 6)
    assert near == ["x.....", "xx....", "xxx...", "xxxx..", ".xxxx.", "..xxxx"]
    assert dependence(decoder(model_config(full, window, window, window)), 6)[-1] == "xxxxxx"


def test_full_attention_without_positions_knows_no_order():
    """Why positions are needed: what the last word of "Man eats small dinosaur" reads has no order without them."""
    full, window = four_layers()
    sentence, shuffled = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 2, 1, 4]])

    def last(config):
        model = decoder(config)
        none = [empty_cache(block.attention) for block in config.blocks]
        return [model(ids, torch.ones(1, 4).long(), none)[0][0, -1] for ids in (sentence, shuffled)]

    assert torch.allclose(*last(model_config(full)))
    assert not torch.allclose(*last(model_config(full, position_embedding=SinusoidalPositions())))
    rotary = block_config(attention_config(rotary=window.attention.rotary))
    assert not torch.allclose(*last(model_config(rotary)))


def test_parameters_of_the_first_transformer():
    """N = 6 blocks, d_model = 512, 8 heads, d_ff = 4 · 512 = 2048, with the biases that it had."""
    feed_forward = FeedForwardConfig(intermediate_size=4 * 512, activation="relu", bias=True, gated=False)
    block = block_config(attention_config(8, 64), feed_forward=feed_forward, norm_placement="post")
    config = model_config(*(block,) * 6, vocab_size=1000, hidden_size=512, position_embedding=SinusoidalPositions())
    count = {part: size // 4 for part, size in account(config).bytes.items()}
    assert count == {
        "embedding": 1000 * 512,  # positions take no parameters, and the head is the embedding
        "attention": 6 * 4 * 512 * 512,
        "feed_forward": 6 * (512 * 2048 + 2048 + 2048 * 512 + 512),
        "norms": 6 * 2 * (512 + 512),
        "head": 0,
    }
