"""Worked examples of the encoder, and of cross-attention: visibility, padding, the first Transformer as a whole.

Attention, norms, activations and sinusoids are tested by themselves in the other files.
"""

import math
from dataclasses import replace

import pytest
import torch
from study_notes import (
    as_printed,
    attention_config,
    attention_weights,
    block_config,
    dependence,
    encoder,
    encoder_config,
    filled,
    from_the_start,
    given,
    model_config,
    seeded,
    tensor,
)

from edgeformer import ops
from edgeformer.config import (
    CrossAttentionConfig,
    FeedForwardConfig,
    PoolingHead,
    RotaryConfig,
    Seq2SeqConfig,
    SinusoidalPositions,
)
from edgeformer.layers import Block, CrossAttention
from edgeformer.manifest.accounting import account

I_LOVE_AI = tensor([1.0, 0.5, -1.0, 0.3], [0.8, -0.2, 0.3, 0.7], [0.1, 0.9, -0.4, 0.5])
EYE = torch.eye(6, dtype=torch.float64)


def noise(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def both_ways(**fields):
    """Return a block of an encoder; the fields are those of its attention."""
    return block_config(attention_config(causal=False, **fields))


def sees(tokens, *blocks):
    return dependence(encoder(encoder_config(*blocks)), tokens)


def test_every_word_of_a_sentence_attends_to_every_word():
    """In "The cat sat on the mat" the score [1, 3] is how much "The" attends to "sat"; each of 6 rows sums to one."""
    weights = attention_weights(noise(6, 6), EYE, causal=False)
    assert weights.shape == (6, 6) and (weights > 0).all() and weights[0, 2] > 0
    assert torch.allclose(weights.sum(-1), torch.ones(6, dtype=torch.float64))
    # Equal scores: an average of all words, whichever reads.
    assert as_printed(attention_weights(0 * EYE, EYE, causal=False)[0]) == [0.167] * 6
    # No word is a step further away than another: one block joins any two.
    assert sees(6, both_ways()) == ["xxxxxx"] * 6


@pytest.mark.parametrize("neighbours", [3, 4, 5])
def test_window_attention_looks_both_ways(neighbours):
    """Every position reads its "3 to 5 neighbours before and after"."""
    reads = sees(12, both_ways(window=neighbours + 1))
    assert reads == ["".join("x" if abs(i - j) <= neighbours else "." for j in range(12)) for i in range(12)]


def test_windows_reach_further_with_every_block():
    """Two blocks of one neighbour each reach two; with full attention one block reaches all."""
    near = both_ways(window=2)
    assert sees(5, near, near) == ["xxx..", "xxxx.", "xxxxx", ".xxxx", "..xxx"]
    assert sees(5, near, both_ways()) == ["xxxxx"] * 5


def test_global_attention_is_mutual():
    """A few special places, "such as the beginning of the sentence", are read by all and read all."""
    assert sees(6, both_ways(window=2, global_tokens=1)) == ["xxxxxx", "xxx...", "xxxx..", "x.xxx.", "x..xxx", "x...xx"]


def test_self_attention_is_linear_in_its_values():
    """It is "a weighted average of the values, without a nonlinearity": the feed-forward network is what adds one."""
    weights = attention_weights(noise(6, 6), EYE, causal=False)
    query, key, values = noise(1, 6, 6), EYE[None], noise(1, 6, 6)

    def attended(values):
        return ops.group_query_attention(
            query, key, values, None, None, torch.ones(1, 6).long(), 1, 1, 6**-0.5, causal=False
        )[0][0]

    assert torch.allclose(attended(values), weights @ values[0])
    assert torch.allclose(attended(3 * values - 1), 3 * attended(values) - 1)


def states(config, ids, mask=None):
    return encoder(config).encode(torch.tensor(ids), None if mask is None else torch.tensor(mask))


def test_order_matters_only_with_positions():
    """Without positions an encoder gives each word of "Man eats small dinosaur" the same states in any order."""
    words, order = [1, 2, 3, 4], [3, 1, 2, 0]  # "Dinosaur eats small man"
    shuffled = [words[place] for place in order]
    plain = encoder_config()
    assert torch.allclose(states(plain, [words])[0][order], states(plain, [shuffled])[0])
    rotary = RotaryConfig(rotary_dim=4, base=10_000.0, interleaved=False, scaling=None)
    for config in (encoder_config(position_embedding=SinusoidalPositions()), encoder_config(both_ways(rotary=rotary))):
        assert not torch.allclose(states(config, [words])[0][order], states(config, [shuffled])[0])


def test_i_love_ai_in_an_encoder():
    """The embeddings of "I love AI." with their encodings added; see `test_golden_positions.py` for the last digits."""
    weights = {"embedding.weight": I_LOVE_AI}
    ids, places = torch.tensor([[0, 1, 2]]), torch.arange(3)[None]

    def embedded(**fields):
        model = encoder(encoder_config(vocab_size=3, position_embedding=SinusoidalPositions(), **fields), weights)
        return [as_printed(row) for row in model.add_positions(model.embed_tokens(ids), places)[0]]

    assert embedded() == [[1.0, 1.5, -1.0, 1.3], [1.641, 0.340, 0.310, 1.700], [1.009, 0.484, -0.380, 1.500]]
    # The notes leave out what section 3.4 of the paper does first: words, not positions, times sqrt(d_model), here 2.
    assert embedded(embedding_scale=4**0.5)[:2] == [[2.0, 2.0, -2.0, 1.6], [2.441, 0.140, 0.610, 2.400]]


def cross_attention(heads=1, head_dim=4, **fields):
    return CrossAttentionConfig(
        **{"num_heads": heads, "head_dim": head_dim, "scale": head_dim**-0.5, "qkv_bias": False, "output_bias": False}
        | fields
    )


def test_queries_are_the_decoders_and_keys_the_encoders():
    """k_i = K·h_i and v_i = V·h_i of the encoder's h_1 … h_T, q_i = Q·z_i of the decoder's z_i.

    With d_k = 4, query (2, 0, 0, 0) and keys whose first elements are ln 1, ln 2 and ln 5, scores are those logarithms:
    the weights are 1/8, 2/8 and 5/8.
    """
    layer = CrossAttention(cross_attention(), 4, 2, torch.float64)
    key, value = torch.zeros(2, 4, 2, dtype=torch.float64)
    key[0, 0] = 1  # h's first element is what it is found by,
    value[3, 1] = 8  # its second what it tells
    eye = torch.eye(4, dtype=torch.float64)
    given(layer, {"query.weight": 2 * eye, "key.weight": key, "value.weight": value, "output.weight": eye})
    h = torch.stack((tensor(1.0, 2.0, 5.0).log(), tensor(100, 10, 1)), -1)[None]
    z = tensor([1, 0, 0, 0], [0, 1, 0, 0])[None]
    all_of_it = torch.ones(1, 3).long()
    source = layer.project(h)
    assert [tuple(part.shape) for part in source] == [(1, 1, 3, 4)] * 2
    # 100·1/8 + 10·2/8 + 1·5/8, times 8; the second query finds nothing in particular, and averages.
    output = layer(z, source, all_of_it)[0]
    assert torch.allclose(output[:, 3], tensor(100 + 20 + 5, 111 * 8 / 3))
    # Where the third word is padding, the weights of the others are 1/3 and 2/3.
    padded = torch.tensor([[1, 1, 0]])
    assert torch.allclose(layer(z, layer.project(h), padded)[0, :, 3], tensor(8 * 120 / 3, 8 * 110 / 2))


def test_shapes_of_attention_to_an_encoder():
    """8 heads of 64 over the 6 words of "The cat sat on the mat": 4 words that read it get (4, 512) again."""
    layer = seeded(CrossAttention(cross_attention(8, 64), 512, 512, torch.float64))
    ones = torch.ones(1, 6).long()
    source = layer.project(noise(1, 6, 512))
    assert [tuple(part.shape) for part in source] == [(1, 8, 6, 64)] * 2
    assert layer(noise(1, 4, 512), source, ones).shape == (1, 4, 512)


def test_three_sublayers_of_a_decoder_block():
    """Masked self-attention, attention to the encoder, feed-forward; "Add & Norm" behind each."""
    config = block_config(attention_config(), cross_attention=cross_attention(), norm_placement="post")
    block = seeded(Block(config, 4, torch.float64, source_size=6))
    x, h, ones = noise(1, 5, 4), noise(1, 3, 6), torch.ones(1, 3).long()
    source = block.cross_attention.project(h)
    start = from_the_start(5)
    context = replace(start, source_mask=ones)
    first = block.attention_norm(x + block.attention(x, (), context)[0])
    second = block.cross_attention_norm(first + block.cross_attention(first, source, ones))
    third = block.feed_forward_norm(second + block.feed_forward(second))
    assert torch.allclose(block(x, None, context, source)[0], third)


def test_two_sublayers_of_an_encoder_block():
    """The same without the one in the middle, and nothing is masked."""
    block = seeded(Block(block_config(attention_config(causal=False), norm_placement="post"), 4, torch.float64))
    x, context = noise(1, 5, 4), from_the_start(5)
    h = block.attention_norm(x + block.attention(x, (), context)[0])
    assert torch.allclose(block(x, None, context)[0], block.feed_forward_norm(h + block.feed_forward(h)))
    assert not hasattr(block, "cross_attention")


def first_transformer(layers=6, d_model=512, heads=8, d_ff=2048, vocab_size=1000):
    """N layers on both sides, norms behind the sums, sinusoids, one table of words for encoder, decoder and head."""
    head_dim = d_model // heads
    network = FeedForwardConfig(intermediate_size=d_ff, activation="relu", bias=True, gated=False)
    block = {"feed_forward": network, "norm_placement": "post"}
    reads = block_config(attention_config(heads, head_dim, causal=False), **block)
    writes = block_config(attention_config(heads, head_dim), cross_attention=cross_attention(heads, head_dim), **block)
    sizes = {"vocab_size": vocab_size, "hidden_size": d_model, "position_embedding": SinusoidalPositions()}
    return Seq2SeqConfig(
        encoder=encoder_config(*(reads,) * layers, **sizes, embedding_scale=d_model**0.5),
        decoder=model_config(*(writes,) * layers, **sizes, embedding_scale=d_model**0.5),
        shared_embedding=True,
    )


def test_parameters_of_the_whole_first_transformer():
    """N = 6 on both sides, d_model = 512, 8 heads, d_ff = 2048: three attentions for a block of each side."""
    count = {part: size // 4 for part, size in account(first_transformer()).bytes.items()}
    assert count == {
        "embedding": 1000 * 512,
        "attention": 2 * 6 * 4 * 512 * 512,
        "cross_attention": 6 * 4 * 512 * 512,
        "feed_forward": 2 * 6 * (512 * 2048 + 2048 + 2048 * 512 + 512),
        "norms": 6 * (2 + 3) * (512 + 512),
        "head": 0,
    }


SMALL = first_transformer(layers=2, d_model=4, heads=2, d_ff=8, vocab_size=16)


def written(model, sources, targets, mask=None):
    """Return the logits [B, S, V] of targets [B, S], each with its source."""
    sources, targets = torch.tensor(sources), torch.tensor(targets)
    mask = torch.ones_like(sources) if mask is None else torch.tensor(mask)
    _, read = model.encode(sources, mask)
    nothing = torch.empty(len(targets), 2, 0, 2, dtype=torch.float64)
    return model.decode(targets, torch.ones_like(targets), mask, [(nothing, nothing)] * 2, read)[0]


def test_a_decoder_reads_all_of_the_source_and_no_future():
    """Generating word t it sees "the first t − 1 words" of the target, and looks back at every word of the input."""
    model, target = filled(SMALL), [5, 6, 7, 8]
    plain = written(model, [[1, 2, 3]], [target])[0]
    for place in range(3):
        other = [1, 2, 3]
        other[place] = 9
        assert ((written(model, [other], [target])[0] - plain).abs().amax(-1) > 1e-9).all()
    for place in range(4):
        other = [*target[:place], 9, *target[place + 1 :]]
        changed = (written(model, [[1, 2, 3]], [other])[0] - plain).abs().amax(-1) > 1e-9
        assert changed.tolist() == [False] * place + [True] * (4 - place)
    assert torch.allclose(plain.softmax(-1).sum(-1), torch.ones(4, dtype=torch.float64))


def test_keys_and_values_come_from_the_last_states():
    """They come "from the final output of the encoder", in every block of the decoder by projections of its own."""
    model = filled(SMALL)
    ids = torch.tensor([[1, 2, 3]])
    last, read = model.encode(ids)
    assert torch.equal(last, model.encoder.encode(ids))
    for block, (key, value) in zip(model.decoder.blocks, read, strict=True):
        for part, projected in (("key", key), ("value", value)):
            projection = getattr(block.cross_attention, part)
            assert torch.allclose(projected.transpose(1, 2).flatten(-2), projection(last))
    assert not torch.allclose(read[0][0], read[1][0])


def test_padding_is_hidden_like_the_future():
    """The notes hide later words by a score of "minus infinity"; what fills up a shorter text is hidden likewise."""
    model = filled(SMALL)
    alone = written(model, [[1, 2]], [[5, 6]])[0]
    for filling in (0, 9):
        batch = written(model, [[1, 2, filling], [4, 3, 2]], [[5, 6], [5, 6]], [[1, 1, 0], [1, 1, 1]])
        assert torch.allclose(batch[0], alone)
    seen = written(model, [[1, 2, 9]], [[5, 6]])[0]
    assert not torch.allclose(seen, alone)


def test_one_vector_of_a_padded_text_is_the_mean_of_its_words():
    """Padding counts neither in the sum nor in the number of words; of length one means divided by the length."""
    pooled = {normalize: encoder_config(head=PoolingHead(pooling="mean", normalize=normalize)) for normalize in (0, 1)}
    ids, mask = torch.tensor([[1, 2, 9]]), torch.tensor([[1, 1, 0]])
    words, mean = encoder(pooled[0])(ids, mask)
    assert torch.allclose(mean, words[:, :2].mean(1))
    direction = encoder(pooled[1])(ids, mask)[1]
    assert torch.allclose(direction * mean.norm(), mean) and math.isclose(direction.norm(), 1)
