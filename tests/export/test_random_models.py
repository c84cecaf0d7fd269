"""Random models over every block that a `ModelConfig` can say are exported and pass the gates of parity.

Two dozen decoders and a few encoders and encoder-decoders are tested here;
`python tools/verification/false_positive_rate.py --models 500 --kind all` tests any number, in both precisions.
"""

import math
import random
import sys
from pathlib import Path

import pytest
from slow_rows import slow_after, slow_unless

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from verification.false_positive_rate import export_random, verify_one
from verification.random_models import random_encoder, random_model, random_seq2seq

from edgeformer.checkpoints.weights import RandomWeights, parameter_shapes
from edgeformer.config import ModelConfig, PoolingHead
from edgeformer.documents import schema
from edgeformer.export.parity.locate.locator import locate
from edgeformer.manifest.accounting import account
from edgeformer.models.model_spec import model_spec_of

SEEDS = range(24)
ENCODERS, PAIRS = (20, 313, 252, 223, 246, 332), (68, 86, 84, 126)
"""Seeds that have nearly every block between them."""


@pytest.mark.parametrize("seed", slow_unless((0, 2), SEEDS))
def test_a_random_model_is_at_parity(seed):
    config = random_model(random.Random(seed))
    report = verify_one(config, ("fp32", "fp32", "fp16")[seed % 3], seed)
    assert report.passed, report.describe()


@pytest.mark.parametrize(
    ("draw", "seed"),
    slow_unless(
        [(random_encoder, ENCODERS[0]), (random_seq2seq, PAIRS[0])],
        [*((random_encoder, seed) for seed in ENCODERS), *((random_seq2seq, seed) for seed in PAIRS)],
    ),
)
def test_a_random_encoder_or_pair_is_at_parity(draw, seed):
    report = verify_one(draw(random.Random(seed)), ("fp32", "fp16")[seed % 2], seed)
    assert report.passed, report.describe()


@pytest.mark.parametrize("seed", slow_after(1, [12, 16, 20]))
def test_no_node_of_a_right_graph_is_a_suspect(seed, tmp_path):
    """`verify --locate` knows every op that the blocks are made of: T5's buckets, patterns, gathered relations…"""
    config = random_model(random.Random(seed))
    model_spec, weights = model_spec_of(config), RandomWeights(config, seed)
    bundle = export_random(model_spec, weights, "fp32", tmp_path)
    assert locate(bundle.path, bundle.manifest, model_spec, weights).suspects == ()


def test_the_two_dozen_have_every_block():
    """What the seeds above draw is not left to chance: a block that none of them has is not tested here."""
    configs = [random_model(random.Random(seed)) for seed in SEEDS]
    attentions = [block.attention for config in configs for block in config.blocks]
    norms = [block.norm for config in configs for block in config.blocks]
    assert {norm.kind for norm in norms} == {"rms_norm", "layer_norm", "batch_norm"}
    placements = {(block.norm_placement, block.residual) for config in configs for block in config.blocks}
    assert {placement for placement, _ in placements} == {"pre", "post", "output", "sandwich"}
    assert {residual for _, residual in placements} == {"serial", "parallel", "parallel_one_norm"}
    assert {type(attention.relative).__name__ for attention in attentions} == {
        "NoneType", "AlibiConfig", "T5BiasConfig", "ShawConfig", "TransformerXLConfig",
    }  # fmt: skip
    for feature in ("rotary", "qk_norm", "qkv_clip", "query_temperature", "softcap", "sinks", "window", "chunk"):
        assert any(getattr(attention, feature) for attention in attentions), feature
    assert any(attention.sliding for attention in attentions)
    assert any(attention.global_tokens for attention in attentions)
    assert any(attention.random_blocks for attention in attentions)
    assert {type(config.position_embedding).__name__ for config in configs} == {
        "NoneType", "LearnedPositions", "SinusoidalPositions",
    }  # fmt: skip


def test_the_few_encoders_have_every_block():
    pairs = [random_seq2seq(random.Random(seed)) for seed in PAIRS]
    alone = [random_encoder(random.Random(seed)) for seed in ENCODERS]
    encoders = alone + [pair.encoder for pair in pairs]
    blocks = [block for encoder in encoders for block in encoder.blocks]
    attentions = [block.attention for block in blocks]
    assert {block.norm.kind for block in blocks} == {"rms_norm", "layer_norm", "batch_norm"}
    assert {block.norm_placement for block in blocks} == {"pre", "post", "output", "sandwich"}
    assert {block.residual for block in blocks} == {"serial", "parallel", "parallel_one_norm"}
    assert {block.attention_norm for block in blocks} == {True, False}
    assert {type(attention.relative).__name__ for attention in attentions} == {
        "NoneType", "AlibiConfig", "T5BiasConfig", "DisentangledConfig",
    }  # fmt: skip
    for feature in (
        "rotary", "qk_norm", "qkv_clip", "query_temperature", "softcap", "sinks", "window", "chunk", "global_tokens",
        "global_projections",
    ):  # fmt: skip
        assert any(getattr(attention, feature) for attention in attentions), feature
    assert {type(encoder.position_embedding).__name__ for encoder in encoders} == {
        "NoneType", "LearnedPositions", "SinusoidalPositions",
    }  # fmt: skip
    assert {encoder.token_types for encoder in alone} == {0, 1, 3}
    assert {type(encoder.head).__name__ for encoder in alone} == {
        "NoneType", "MaskedLMHead", "ClassificationHead", "QuestionAnsweringHead", "PoolingHead",
    }  # fmt: skip
    assert {bool(encoder.head.layers) for encoder in alone if isinstance(encoder.head, PoolingHead)} == {True, False}
    assert {encoder.shared_blocks for encoder in alone} == {True, False}
    assert {encoder.embedding_size is None for encoder in alone} == {True, False}
    across = [pair.decoder.blocks[0].cross_attention for pair in pairs]
    assert {each.softcap for each in across} == {None, 4.0}
    assert {each.kv_heads == each.num_heads for each in across} == {True, False}
    assert {pair.shared_embedding for pair in pairs} == {pair.decoder.tied_head for pair in pairs} == {True, False}
    assert {pair.encoder.audio is None for pair in pairs} == {True, False}
    assert {pair.encoder.hidden_size == pair.decoder.hidden_size for pair in pairs} == {True, False}
    assert {block.norm_placement for pair in pairs for block in pair.decoder.blocks} == {
        "pre", "post", "output", "sandwich",
    }  # fmt: skip


@pytest.mark.parametrize("draw", [random_model, random_encoder, random_seq2seq], ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("seed", range(100))
def test_configs_survive_json_and_are_counted_right(seed, draw):
    config = draw(random.Random(seed))
    assert schema.from_json(ModelConfig, schema.to_json(config)) == config
    assert account(config).parameters == sum(map(math.prod, parameter_shapes(config).values()))
