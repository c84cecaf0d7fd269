"""Worked examples of attention: heads, scaling, masks, shared keys, windows, and what keeps softmax stable."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from study_notes import (
    as_printed,
    attend,
    attention_config,
    attention_weights,
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

from edgeformer.config import NormConfig, QKNormConfig, RandomBlocks
from edgeformer.layers import Attention
from edgeformer.manifest.accounting import account

EYE = torch.eye(6, dtype=torch.float64)


def noise(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_shapes_of_eight_heads():
    """The 6 words of "The cat sat on the mat", 512 elements each; 8 heads of 512 / 8 = 64; 6 × 512 behind W_O."""
    attention = seeded(Attention(attention_config(8, 64), 512, torch.float64))
    assert {tuple(p.shape) for p in attention.parameters()} == {(512, 512)}
    output, (keys, values) = attention(noise(1, 6, 512), empty_cache(attention.config), from_the_start(6))
    assert output.shape == (1, 6, 512)
    assert keys.shape == values.shape == (1, 8, 6, 64)


def test_scores_are_divided_by_the_root_of_head_dim():
    """64 elements: by 8."""
    scores = noise(6, 6)
    assert attention_config(8, 64).scale == 1 / 8
    eighth = attention_weights(scores, EYE, scale=attention_config(8, 64).scale)
    assert torch.allclose(eighth, attention_weights(scores / 8, EYE, scale=1.0))
    assert not torch.allclose(eighth, attention_weights(scores, EYE, scale=1.0))


def test_weights_of_a_row_sum_to_one_and_the_future_has_none():
    """Scores of later words are "minus infinity", so that softmax makes them 0.

    In the encoder of the example "The" may attend to "sat"; in a decoder it sees itself alone.
    """
    weights = attention_weights(10 * noise(6, 6), EYE)
    assert torch.allclose(weights.sum(-1), torch.ones(6, dtype=torch.float64))
    assert torch.equal(weights.triu(1), torch.zeros_like(weights)) and weights[0, 2] == 0
    assert (weights.tril() + torch.ones_like(weights).triu(1) > 0).all()
    assert weights[0, 0] == 1
    # Equal scores: an average of the words so far.
    assert as_printed(attention_weights(0 * EYE, EYE)[2]) == [0.333, 0.333, 0.333, 0, 0, 0]


def test_dot_products_have_the_variance_of_their_length():
    """q·k of d_k independent elements of variance 1 has variance d_k, and 1 once divided by sqrt(d_k).

    Exactly so over all 16 keys of four elements ±1; scores are read back as logarithms of the weights.
    """
    keys = torch.cat((tensor(*product((-1, 1), repeat=4)), tensor([0, 0, 0, 0])))
    queries = torch.zeros_like(keys)
    queries[-1] = tensor(1, -1, -1, 1)

    def variance(scale):
        return attention_weights(queries, keys, scale=scale)[-1, :-1].log().var(correction=0).item()

    assert variance(1.0) == pytest.approx(4)
    assert variance(4**-0.5) == pytest.approx(1)


def test_heads_may_be_wider_than_the_model_divided_by_them():
    """Then W_O is (heads · head_dim, d_model), not (d_model, d_model)."""
    attention = seeded(Attention(attention_config(8, 128), 512, torch.float64))
    assert attention.output.weight.t().shape == (8 * 128, 512)
    assert attend(attention, noise(6, 512)).shape == (6, 512)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_of_a_group_share_keys_and_values(groups):
    """G groups of heads read one key and value each: G = 4 heads is multi-head attention, G = 1 multi-query."""
    grouped = seeded(Attention(attention_config(4, 2, num_kv_heads=groups), 8, torch.float64))
    shared = {
        name: value.unflatten(0, (groups, 1, 2)).expand(-1, 4 // groups, -1, -1).flatten(0, 2)
        for name, value in grouped.state_dict().items()
        if name in ("key.weight", "value.weight")
    }
    every_head = given(Attention(attention_config(4, 2), 8, torch.float64), grouped.state_dict() | shared)
    assert torch.allclose(attend(grouped, noise(6, 8)), attend(every_head, noise(6, 8)))
    assert grouped.query.weight.shape == (4 * 2, 8)
    assert grouped.key.weight.shape == grouped.value.weight.shape == (groups * 2, 8)
    assert shared["key.weight"].shape == (8, 8)


def test_one_shared_key_divides_the_cache_by_the_heads():
    """The memory of the KV cache shrinks "H-fold"; here there are 6 blocks of 8 heads of 64."""

    def cache(kv_heads):
        blocks = (block_config(attention_config(8, 64, num_kv_heads=kv_heads)),) * 6
        return account(model_config(*blocks, hidden_size=512), "fp16").cache_bytes_per_token

    assert cache(8) == 2 * 6 * 512 * 2  # keys and values, blocks, elements, bytes
    assert (cache(8) / cache(1), cache(8) / cache(2)) == (8, 4)


def test_normed_queries_and_keys_have_bounded_scores():
    """QK norm "limits the norms of Q and K": scaling their projections changes nothing any more."""
    x = noise(6, 8)

    def outputs(qk_norm):
        attention = seeded(Attention(attention_config(2, 4, qk_norm=qk_norm), 8, torch.float64))
        small = attend(attention, x)
        attention.query.weight *= 1000
        attention.key.weight *= 1000
        return small, attend(attention, x)

    assert torch.allclose(*outputs(QKNormConfig(norm=NormConfig(eps=0.0), over="head")))
    assert not torch.allclose(*outputs(None))
    # Vectors of root mean square 1 and D elements have a product of at most D, a score of at most sqrt(D).
    normed = NormConfig(eps=0.0, weight=False)
    scores = attention_weights(1000 * EYE, EYE, qk_norm=QKNormConfig(norm=normed, over="head"))[-1].log()
    assert (scores[-1] - scores[0]).item() == pytest.approx(math.sqrt(6))


def test_scores_are_capped_softly():
    """cap · tanh(s / cap): small scores stay what they are, large ones end at ± cap."""
    scores = torch.zeros(4, 4, dtype=torch.float64)
    scores[-1] = tensor(0, 0.001, 1000, -1000)
    eye = torch.eye(4, dtype=torch.float64)
    capped = attention_weights(scores, eye, scale=1.0, softcap=50.0)[-1].log()
    assert as_printed(capped - capped[0]) == [0, 0.001, 50, -50]
    assert attention_weights(scores, eye, scale=1.0)[-1].tolist() == [0, 0, 1, 0]


def test_logits_are_capped_softly():
    """soft_cap · tanh(logits / soft_cap), in the model's last step."""
    config = model_config(vocab_size=4, logit_softcap=30.0)
    weights = {"embedding.weight": torch.eye(4, dtype=torch.float64)}  # its own head: logits are the hidden state
    x = tensor(0, 0.001, 1000, -1000)
    assert as_printed(decoder(config, weights).unembed(x)) == [0, 0.001, 30, -30]
    assert torch.equal(decoder(replace(config, logit_softcap=None), weights).unembed(x), x)


def sees(tokens=8, **pattern):
    """Which tokens each reads in one block of attention."""
    return dependence(decoder(model_config(block_config(attention_config(**pattern)))), tokens)


def test_full_attention_reads_all_that_came_before():
    assert sees(4) == ["x...", "xx..", "xxx.", "xxxx"]


@pytest.mark.parametrize("neighbours", [3, 4, 5])
def test_window_attention(neighbours):
    """Every position reads its "3 to 5 neighbours before and after"; in a decoder, those before."""
    reads = sees(window=neighbours + 1)
    assert [row.count("x") for row in reads] == [min(i, neighbours) + 1 for i in range(8)]
    assert all("." not in row.strip(".") and row.rstrip(".").endswith("x") for row in reads)


def test_global_attention():
    """A few special places, "such as the beginning of the sentence", are read by all."""
    assert sees(6, window=2, global_tokens=1) == ["x.....", "xx....", "xxx...", "x.xx..", "x..xx.", "x...xx"]


def test_random_attention():
    """Each position draws some of the others: here one single token before it, beside a window of one."""
    reads = sees(8, window=1, random_blocks=RandomBlocks(size=1, count=1, seed=0))
    assert [row.count("x") for row in reads] == [1, 2, 2, 2, 2, 2, 2, 2]
    assert all(row[i] == "x" and "x" not in row[i + 1 :] for i, row in enumerate(reads))
    assert reads != sees(8, window=1, random_blocks=RandomBlocks(size=1, count=1, seed=1))
