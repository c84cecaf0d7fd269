"""Relative positions against their papers' formulas, computed here pair by pair, and against transformers' T5."""

import math
from dataclasses import replace

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.t5.modeling_t5 import T5Attention

from edgeformer.config import (
    AlibiConfig,
    AttentionConfig,
    DisentangledConfig,
    QueryTemperature,
    RandomBlocks,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
)
from edgeformer.layers import Attention, Context
from edgeformer.layers.attention.attention_bias import (
    AlibiBias,
    T5Bias,
    Visibility,
    group_size,
    group_table,
    random_blocks,
    t5_buckets,
)
from edgeformer.layers.attention.relation import relation_rows
from edgeformer.layers.position import sinusoidal_table, temperature_table

D64 = torch.float64
POSITIONS = torch.arange(20)
DISTANCES = (POSITIONS[:, None] - POSITIONS)[None]


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (16, 64), (64, 1000), (4, 64)])
def test_t5_buckets_are_those_of_transformers(num_buckets, max_distance):
    distances = torch.arange(3000)
    theirs = T5Attention._relative_position_bucket(
        -distances, bidirectional=False, num_buckets=num_buckets, max_distance=max_distance
    )
    config = T5BiasConfig(num_buckets=num_buckets, max_distance=max_distance)
    assert torch.equal(t5_buckets(config, 3000), theirs)


@pytest.mark.parametrize(("span", "max_distance"), [(256, 512), (8, 48), (7, 64), (32, 1000), (2, 16)])
def test_rows_of_relations_are_those_of_transformers(span, max_distance):
    distances = torch.arange(-1499, 1500)
    theirs = make_log_bucket_position(distances, span, max_distance).long() + span
    config = DisentangledConfig(span=span, max_distance=max_distance)
    assert torch.equal(relation_rows(config, 1500), theirs.clamp(0, 2 * span - 1))
    linear = relation_rows(replace(config, max_distance=None), 1500)
    assert torch.equal(linear, (distances + span).clamp(0, 2 * span - 1))
    assert not torch.equal(linear, relation_rows(config, 1500))


def test_t5_bias_is_the_weight_of_the_bucket():
    config = T5BiasConfig(num_buckets=8, max_distance=16)
    bias = T5Bias(config, 3, 20, D64)
    bias.buckets = t5_buckets(config, 20)
    torch.nn.init.normal_(bias.weight)
    actual = bias(DISTANCES)
    assert actual.shape == (1, 3, 20, 20)
    for query, key in ((0, 0), (3, 2), (19, 0), (12, 7)):
        assert torch.equal(actual[0, :, query, key], bias.weight[bias.buckets[query - key]])


def test_alibi_falls_with_the_distance_by_the_slope_of_the_head():
    bias = AlibiBias(AlibiConfig(slopes=(0.5, 0.25)), D64)
    bias.slopes = torch.tensor([0.5, 0.25], dtype=D64)
    assert bias(DISTANCES)[0, :, 7, 3].tolist() == [-2.0, -1.0]


def attention_config(**fields):
    settings = {
        "num_heads": 2, "num_kv_heads": 2, "head_dim": 4, "scale": 0.5, "qkv_bias": False, "output_bias": False,
        "rotary": None,
    }  # fmt: skip
    return AttentionConfig(**(settings | fields))


def test_transformer_xl_is_the_sum_of_its_four_terms():
    """(q + u)·k + (q + v)·W_r r(i − j), arXiv 1901.02860, section 3.3, one pair at a time."""
    torch.manual_seed(0)
    config = attention_config(relative=TransformerXLConfig())
    attention = Attention(config, 6, D64)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 5, 6, dtype=D64)
    table = sinusoidal_table(SinusoidalPositions(interleaved=False), 16, 6)
    places = torch.arange(5)[None]
    context = Context(torch.ones(1, 5, dtype=torch.int64), places, places, distances=table)
    empty = torch.zeros(1, 2, 0, 4, dtype=D64)
    actual, _ = attention(x, (empty, empty), context)

    q, k, v = (projection(x)[0].view(5, 2, 4) for projection in (attention.query, attention.key, attention.value))
    u, w = attention.content_bias.view(2, 4), attention.position_bias.view(2, 4)
    heads = torch.zeros(5, 2, 4, dtype=D64)
    for head in range(2):
        for i in range(5):
            scores = []
            for j in range(i + 1):
                r = attention.relative_key(table[i - j]).view(2, 4)[head]
                content = q[i, head] @ k[j, head] + u[head] @ k[j, head]
                position = q[i, head] @ r + w[head] @ r
                scores.append((content + position) * config.scale)
            weights = torch.stack(scores).softmax(0)
            heads[i, head] = sum(weight * v[j, head] for j, weight in enumerate(weights))
    expected = attention.output(heads.flatten(1))
    torch.testing.assert_close(actual[0], expected, rtol=0, atol=1e-12)


def seen(config, context_length=20):
    visibility = Visibility(config, context_length)
    if group_size(config) is not None:
        visibility.group = group_table(group_size(config), context_length)
    if config.random_blocks is not None:
        visibility.blocks = random_blocks(config.random_blocks, context_length)
    return visibility(POSITIONS[None], POSITIONS[None], D64)[0, 0] == 0


def test_a_chunk_sees_itself_alone():
    visible = seen(attention_config(chunk=6))
    assert visible[7, 6]
    assert not visible[7, 5]
    assert visible[18, 18]
    assert not visible[18, 17]


def test_global_tokens_are_seen_from_everywhere():
    visible = seen(attention_config(window=3, global_tokens=2))
    assert visible[15].nonzero().flatten().tolist() == [0, 1, 13, 14, 15, 16, 17, 18, 19]  # the op masks what is ahead


def test_random_blocks_are_earlier_ones_and_always_the_same():
    config = RandomBlocks(size=4, count=2, seed=3)
    blocks = random_blocks(config, 20)
    assert torch.equal(blocks, random_blocks(config, 20))
    assert not torch.equal(blocks, random_blocks(RandomBlocks(size=4, count=2, seed=4), 20))
    assert torch.equal(blocks, blocks.tril(-1))
    assert blocks.sum(1).tolist() == [0, 1, 2, 2, 2]
    visible = seen(attention_config(window=1, random_blocks=config))
    for i in range(20):
        for j in range(i):
            assert visible[i, j] == bool(blocks[i // 4, j // 4])


@pytest.mark.parametrize("first", [0, 1])
def test_query_temperature_is_llama_4s_and_ministral_3s(first):
    table = temperature_table(QueryTemperature(floor_scale=8, scale=0.1, first=first), 40)
    other = temperature_table(QueryTemperature(floor_scale=8, scale=0.1, first=1 - first), 40)
    assert [row for row in range(40) if table[row] != other[row]] == [7, 15, 23, 31, 39]
    for position in (0, 6, 7, 8, 15, 39):
        expected = math.log(math.floor((position + first) / 8) + 1) * 0.1 + 1
        assert table[position].item() == pytest.approx(expected, rel=1e-15)
