"""Bidirectional attention and cross-attention against their formulas, one pair of tokens at a time.

Also tested: symmetric windows, global tokens, T5's bidirectional buckets, all layouts of sinusoids.
"""

import math
from dataclasses import replace

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from edgeformer import ops
from edgeformer.config import (
    AlibiConfig,
    AttentionConfig,
    BlockConfig,
    CrossAttentionConfig,
    DecoderConfig,
    EncoderConfig,
    FeedForwardConfig,
    NormConfig,
    Seq2SeqConfig,
    SinusoidalPositions,
    T5BiasConfig,
)
from edgeformer.layers import Attention, Context
from edgeformer.layers.attention.attention import CrossAttention
from edgeformer.layers.attention.attention_bias import AlibiBias, T5Bias, Visibility, group_table, t5_buckets
from edgeformer.layers.position import sinusoidal_table
from edgeformer.models import Seq2Seq

D64 = torch.float64
TOLERANCE = {"rtol": 0, "atol": 1e-12}
PADDED = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def noise(*shape, seed=0):
    return torch.randn(*shape, dtype=D64, generator=torch.Generator().manual_seed(seed))


def pair_by_pair(query, key, value, mask, scale, bias=None):
    """softmax over the valid keys of (q·k·scale + bias), times their values; query [B, H, S, D], key [B, H, T, D]."""
    output = torch.zeros_like(query)
    batch, heads, new, _ = query.shape
    for row in range(batch):
        valid = [column for column in range(key.shape[2]) if mask[row, column]]
        for head in range(heads):
            for i in range(new):
                scores = [float(query[row, head, i] @ key[row, head, j]) * scale for j in valid]
                if bias is not None:
                    scores = [score + float(bias[0, head, i, j]) for score, j in zip(scores, valid, strict=True)]
                total = sum(math.exp(score) for score in scores)
                for score, j in zip(scores, valid, strict=True):
                    output[row, head, i] += math.exp(score) / total * value[row, head, j]
    return output


def fill(module):
    for index, parameter in enumerate(module.requires_grad_(False).parameters()):
        parameter.data = noise(*parameter.shape, seed=index)


def heads_of(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def flat(heads):
    return heads.transpose(1, 2).flatten(-2)


@pytest.mark.parametrize("new", [1, 4])
def test_cross_attention_is_its_formula(new):
    query, key, value = noise(2, new, 3 * 4), noise(2, 3, 5, 4, seed=1), noise(2, 3, 5, 4, seed=2)
    output = ops.cross_attention(query, key, value, PADDED, 0.3)
    expected = flat(pair_by_pair(heads_of(query, 3), key, value, PADDED, 0.3))
    torch.testing.assert_close(output, expected, **TOLERANCE)
    # Negative control: the formula differs without padding, and with another scale.
    for other in (
        ops.cross_attention(query, key, value, torch.ones_like(PADDED), 0.3)[1],
        ops.cross_attention(query, key, value, PADDED, 0.31)[1],
    ):
        assert (other - expected[1]).abs().max() > 1e-3


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_of_an_encoder_is_its_formula(kv_heads, biased):
    query, key, value = noise(2, 5, 4 * 4), noise(2, 5, kv_heads * 4, seed=1), noise(2, 5, kv_heads * 4, seed=2)
    bias = noise(1, 4, 5, 5, seed=3) if biased else None
    given = {"num_heads": 4, "num_kv_heads": kv_heads, "scale": 0.4, "attention_bias": bias}
    output, keys, values = ops.group_query_attention(query, key, value, None, None, PADDED, **given, causal=False)
    repeated = [heads_of(part, kv_heads).repeat_interleave(4 // kv_heads, 1) for part in (key, value)]
    expected = flat(pair_by_pair(heads_of(query, 4), *repeated, PADDED, 0.4, bias))
    torch.testing.assert_close(output, expected, **TOLERANCE)
    torch.testing.assert_close(keys, heads_of(key, kv_heads), rtol=0, atol=0)
    torch.testing.assert_close(values, heads_of(value, kv_heads), rtol=0, atol=0)
    causal, *_ = ops.group_query_attention(query, key, value, None, None, PADDED, **given)
    assert (causal - expected)[0, :-1].abs().amax(-1).min() > 1e-3  # every token but the last sees more
    torch.testing.assert_close(causal[0, -1], expected[0, -1], **TOLERANCE)


def test_no_past_is_an_empty_one():
    query, key, value = noise(2, 5, 8), noise(2, 5, 8, seed=1), noise(2, 5, 8, seed=2)
    empty = torch.zeros(2, 2, 0, 4, dtype=D64)
    sizes = {"num_heads": 2, "num_kv_heads": 2, "scale": 0.5}
    for causal in (True, False):
        without = ops.group_query_attention(query, key, value, None, None, PADDED, **sizes, causal=causal)
        with_empty = ops.group_query_attention(query, key, value, empty, empty, PADDED, **sizes, causal=causal)
        torch.testing.assert_close(without, with_empty, rtol=0, atol=0)


def test_a_window_limits_only_how_far_a_query_looks_back():
    """As a picture of Gemma 3 does in a layer with a window, also one that is longer than the window."""
    query, key, value, past = noise(1, 6, 8), noise(1, 6, 8, seed=1), noise(1, 6, 8, seed=2), noise(1, 2, 3, 4, seed=3)
    mask, sizes = torch.ones(1, 9, dtype=torch.int64), {"num_heads": 2, "num_kv_heads": 2, "scale": 0.5}
    found, *_ = ops.group_query_attention(query, key, value, past, past, mask, **sizes, window=4, causal=False)
    distances = torch.arange(3, 9)[:, None] - torch.arange(9)
    bias = torch.zeros(6, 9, dtype=D64).masked_fill(distances >= 4, float("-inf"))[None, None]
    options = {**sizes, "attention_bias": bias, "causal": False}
    expected, *_ = ops.group_query_attention(query, key, value, past, past, mask, **options)
    torch.testing.assert_close(found, expected, **TOLERANCE)
    both, *_ = ops.group_query_attention(query, key, value, past, past, mask, **sizes, causal=False)
    assert (found - both)[0, 1:].abs().amax(-1).min() > 1e-3  # every query but the first loses keys


def test_cross_attention_is_that_of_every_pair():
    config = CrossAttentionConfig(num_heads=2, head_dim=4, scale=0.5, qkv_bias=True, output_bias=True, key_bias=False)
    attention = CrossAttention(config, 6, 10, D64)
    fill(attention)
    assert attention.key.bias is None
    key, value = attention.project(noise(2, 5, 10, seed=9))
    x = noise(2, 3, 6, seed=10)
    expected = flat(pair_by_pair(heads_of(attention.query(x), 2), key, value, PADDED, 0.5))
    torch.testing.assert_close(attention(x, (key, value), PADDED), attention.output(expected), **TOLERANCE)


def test_padding_that_overflows_in_an_encoder_harms_no_decoder(monkeypatch):
    """Attention multiplies hidden values with zero, and 0 · inf is NaN."""
    sizes = {"num_heads": 2, "head_dim": 4, "scale": 0.5, "qkv_bias": True, "output_bias": True}
    attention = AttentionConfig(**sizes, num_kv_heads=2, rotary=None)
    feed_forward = FeedForwardConfig(intermediate_size=8, activation="relu", bias=False, gated=False)
    block = BlockConfig(attention=attention, feed_forward=feed_forward, norm=NormConfig(eps=1e-6))
    stack = {"vocab_size": 11, "hidden_size": 8, "context_length": 5, "final_norm": None}
    reading = replace(block, attention=replace(attention, causal=False))
    writing = replace(block, cross_attention=CrossAttentionConfig(**sizes))
    model = Seq2Seq(
        Seq2SeqConfig(
            encoder=EncoderConfig(blocks=(reading,), **stack),
            decoder=DecoderConfig(blocks=(writing,), tied_head=True, **stack),
            shared_embedding=True,
        ),
        D64,
    )
    fill(model)
    states = noise(2, 5, 8, seed=9)
    read = []
    for padding in (states[1, 3:].clone(), torch.inf):
        states[1, 3:] = padding
        monkeypatch.setattr(model.encoder, "encode", lambda *inputs: states)
        read.append(model.encode(torch.zeros(2, 5, dtype=torch.int64), PADDED)[1])
    torch.testing.assert_close(read[1], read[0], rtol=0, atol=0)
    assert all(part.isfinite().all() for part in read[1][0])


# Visibility.


def attention_config(**fields):
    settings = {
        "num_heads": 2, "num_kv_heads": 2, "head_dim": 4, "scale": 0.5, "qkv_bias": False, "output_bias": False,
        "rotary": None, "causal": False,
    }  # fmt: skip
    return AttentionConfig(**(settings | fields))


def seen(config, length=12):
    """Return rows with an x for each key that a query sees."""
    visibility = Visibility(config, length)
    if config.chunk is not None:
        visibility.group = group_table(config.chunk, length)
    positions = torch.arange(length)
    bias = visibility(positions[None], positions[None], D64)
    assert bias.shape == (1, 1, length, length)
    hidden = bias[0, 0] != 0
    # It is not −inf, because a row may have no visible key; and it is far below all scores.
    assert (bias[0, 0][hidden] < -1e300).all() and torch.isfinite(bias).all()
    return ["".join(".x"[int(not each)] for each in row) for row in hidden]


def expected_rows(sees, length=12):
    return ["".join(".x"[int(sees(i, j))] for j in range(length)) for i in range(length)]


def test_a_window_looks_as_far_ahead_as_back():
    assert seen(attention_config(window=3)) == expected_rows(lambda i, j: abs(i - j) < 3)
    assert seen(attention_config(window=3)) != expected_rows(lambda i, j: abs(i - j) < 4)


def test_global_tokens_see_all_and_are_seen_by_all():
    rows = seen(attention_config(window=2, global_tokens=2))
    assert rows == expected_rows(lambda i, j: abs(i - j) < 2 or i < 2 or j < 2)
    assert rows[0] == "x" * 12
    assert rows[7] == "xx....xxx..."


def test_a_chunk_is_seen_whole():
    assert seen(attention_config(chunk=5)) == expected_rows(lambda i, j: i // 5 == j // 5)


def test_padding_that_sees_nothing_gives_numbers():
    """For padding after a text that ends before its window begins, every score is hidden."""
    config = attention_config(window=2)
    attention = Attention(config, 6, D64)
    fill(attention)
    visibility = Visibility(config, 8)
    places = torch.arange(8)[None]
    mask = (places < 3).long()
    context = Context(mask, places, places, bias=visibility(places, places, D64))
    output, _ = attention(noise(1, 8, 6), None, context)
    assert torch.isfinite(output).all()


def test_global_tokens_may_have_projections_of_their_own():
    """Longformer: global tokens have projections of their own; other tokens see their usual keys and values."""
    config = attention_config(window=2, global_tokens=2, global_projections=True)
    attention = Attention(config, 6, D64)
    fill(attention)
    x, places = noise(2, 5, 6, seed=20), torch.arange(5)[None]
    bias = Visibility(config, 5)(places, places, D64)
    output, _ = attention(x, None, Context(PADDED, places, places, bias=bias))
    near, overall = (
        flat(pair_by_pair(*(heads_of(part(x), 2) for part in parts), PADDED, 0.5, with_bias))
        for parts, with_bias in (
            ((attention.query, attention.key, attention.value), bias.expand(1, 2, -1, -1)),
            ((attention.global_query, attention.global_key, attention.global_value), None),
        )
    )
    expected = attention.output(torch.cat((overall[:, :2], near[:, 2:]), 1))
    for row, length in enumerate((5, 3)):
        torch.testing.assert_close(output[row, :length], expected[row, :length], **TOLERANCE)
    assert (attention.output(near) - expected)[0, 0].abs().max() > 1e-3


# Biases by distance.

DISTANCES = (torch.arange(20)[:, None] - torch.arange(20))[None]


def bucket_by_formula(distance, num_buckets, max_distance):
    """Bucket of query − key, arXiv 1910.10683: keys ahead have the upper half, near distances a bucket each."""
    half = num_buckets // 2
    first = half if distance < 0 else 0
    far, exact = abs(distance), half // 2
    if far < exact:
        return first + far
    share = math.log(far / exact) / math.log(max_distance / exact)
    return first + min(exact + int(share * (half - exact)), half - 1)


# No distance is at the edge of two buckets, where float32, in which T5 computes them, decides.
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(8, 20), (16, 50), (32, 100)])
def test_t5_buckets_of_both_directions_are_their_formula(num_buckets, max_distance):
    buckets = t5_buckets(T5BiasConfig(num_buckets=num_buckets, max_distance=max_distance, bidirectional=True), 300)
    expected = [bucket_by_formula(distance, num_buckets, max_distance) for distance in range(-299, 300)]
    assert buckets.tolist() == expected
    assert buckets.flip(0).tolist() != expected  # ahead is not behind


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (16, 64), (64, 1000), (4, 64)])
def test_t5_buckets_of_both_directions_are_those_of_transformers(num_buckets, max_distance):
    theirs = T5Attention._relative_position_bucket(
        -torch.arange(-2999, 3000), bidirectional=True, num_buckets=num_buckets, max_distance=max_distance
    )
    config = T5BiasConfig(num_buckets=num_buckets, max_distance=max_distance, bidirectional=True)
    assert torch.equal(t5_buckets(config, 3000), theirs)


def test_t5_bias_of_both_directions_is_the_weight_of_the_bucket():
    config = T5BiasConfig(num_buckets=8, max_distance=16, bidirectional=True)
    bias = T5Bias(config, 3, 20, D64)
    bias.buckets = t5_buckets(config, 20)
    fill(bias)
    actual = bias(DISTANCES)
    assert actual.shape == (1, 3, 20, 20)
    for i in range(20):
        for j in range(20):
            assert torch.equal(actual[0, :, i, j], bias.weight[bucket_by_formula(i - j, 8, 16)])
    assert not torch.equal(actual, actual.transpose(2, 3))


def test_alibi_falls_with_the_distance_in_both_directions():
    config = AlibiConfig(slopes=(0.5, 0.25))
    bias = AlibiBias(config, D64, causal=False)
    bias.slopes = torch.tensor(config.slopes, dtype=D64)
    actual = bias(DISTANCES)[0]
    assert actual[:, 7, 3].tolist() == actual[:, 3, 7].tolist() == [-2.0, -1.0]
    assert actual[:, 4, 4].tolist() == [0.0, 0.0]


# Sinusoids.


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("to_base", [False, True])
def test_sinusoids_are_their_formula(to_base, offset, interleaved):
    size, rows = 10, 7
    config = SinusoidalPositions(base=500.0, interleaved=interleaved, to_base=to_base, offset=offset)
    table = sinusoidal_table(config, rows, size)
    for position in range(rows):
        for pair in range(size // 2):
            angle = (position + offset) / 500 ** (2 * pair / (size - 2 if to_base else size))
            sine, cosine = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + size // 2)
            assert table[position, sine].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[position, cosine].item() == pytest.approx(math.cos(angle), abs=1e-14)
    for other in (
        replace(config, to_base=not to_base), replace(config, offset=offset + 1),
        replace(config, interleaved=not interleaved),
    ):  # fmt: skip
        assert (sinusoidal_table(other, rows, size) - table).abs().max() > 1e-2


def test_exponents_that_end_at_one_are_those_of_whisper():
    """Whisper: log(10000) / (half − 1) between the exponents, so that the slowest rotates once in 10000 · 2π tokens."""
    from transformers.models.whisper.modeling_whisper import sinusoids

    table = sinusoidal_table(SinusoidalPositions(interleaved=False, to_base=True), 50, 16)
    torch.testing.assert_close(table.float(), sinusoids(50, 16), rtol=0, atol=1e-5)
