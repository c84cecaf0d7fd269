"""The generic family: a DecoderConfig as JSON and safetensors with edgeformer's names, from config.json to logits.

The reference is edgeformer's module in float64 without a cache; its parts have tests of their own.
"""

import json
import time

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from slow_rows import slow_after

from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weights import RandomWeights, parameter_shapes
from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    NormConfig,
    RotaryConfig,
    ShawConfig,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
)
from edgeformer.errors import ConfigError, WeightsError
from edgeformer.export import export_model
from edgeformer.models import Decoder, model_constants
from edgeformer.runtime import load

LAYER_NORM = NormConfig(kind="layer_norm", eps=1e-5, bias=True)
RMS_NORM = NormConfig(eps=1e-6)


def attention(**options):
    plain = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "scale": 0.25, "qkv_bias": False, "output_bias": False}
    return AttentionConfig(**{**plain, "rotary": None, **options})


def block(attention, norm=RMS_NORM, gated=True, activation="silu", bias=False, **options):
    feed_forward = FeedForwardConfig(intermediate_size=96, activation=activation, bias=bias, gated=gated)
    return BlockConfig(attention=attention, feed_forward=feed_forward, norm=norm, **options)


def model(*blocks, **options):
    plain = {"vocab_size": 131, "hidden_size": 64, "context_length": 96, "tied_head": False, "final_norm": RMS_NORM}
    return DecoderConfig(blocks=blocks, **{**plain, **options})


BIASES = {"qkv_bias": True, "output_bias": True}
LOCAL = {"rotary": RotaryConfig(rotary_dim=8, base=500.0, interleaved=True, scaling=None), "num_kv_heads": 2}

CONFIGS = {
    # The decoder of arXiv 1706.03762 without the encoder: norms behind, sinusoids added, a plain feed-forward.
    "2017": model(
        *[block(attention(**BIASES), LAYER_NORM, False, "relu", True, norm_placement="post")] * 2,
        final_norm=None, tied_head=True, embedding_scale=8.0, position_embedding=SinusoidalPositions(),
    ),
    "shaw": model(*[block(attention(relative=ShawConfig(max_distance=5, values=True), num_kv_heads=2))] * 2),
    "transformer-xl": model(
        *[block(attention(relative=TransformerXLConfig()), LAYER_NORM, False, "gelu", True, norm_placement="post")] * 2,
        final_norm=None,
    ),
    # Blocks that differ: windows, learned biases by distance, sinks, softcaps, placement of norms.
    "mixed": model(
        block(attention(**LOCAL, window=7), norm_placement="sandwich"),
        block(attention(relative=T5BiasConfig(num_buckets=8, max_distance=20), num_kv_heads=2, sinks=True)),
        block(attention(num_kv_heads=2, window=5, global_tokens=2, softcap=8.0), residual="parallel"),
        position_embedding=LearnedPositions(rows=100, offset=4), embedding_norm=LAYER_NORM, head_bias=True,
        logit_softcap=5.0,
    ),
}  # fmt: skip


@pytest.fixture
def make_folder(tmp_path):
    """Return a function that writes a folder: config.json, and tensors if requested."""

    def make(data, tensors=None):
        folder = tmp_path / "source"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "generic", "eos_token_id": 2, **data}))
        if tensors is not None:
            save_file(tensors, folder / "model.safetensors")
        return folder

    return make


def random_tensors(config):
    return {name: tensor.contiguous() for name, tensor in RandomWeights(config, seed=3).items()}


def reference(config, tensors, tokens):
    """Return the logits [S, V] of edgeformer's module in float64, over the whole text at once."""
    decoder = Decoder(config, torch.float64).eval()
    state = {name: tensor.double() for name, tensor in tensors.items()}
    with torch.no_grad():
        decoder.load_state_dict(state, strict=False)  # a tied head has only its first name there
        for name, value in model_constants(config).items():
            decoder.get_buffer(name).copy_(value)
        geometry = config.cache_geometry
        empty = [torch.zeros(tensor.shape(1, 0), dtype=torch.float64) for tensor in geometry.tensors()]
        ids = torch.tensor([tokens])
        return decoder(ids, torch.ones_like(ids), geometry.by_layer(empty))[0][0].numpy()


@pytest.mark.parametrize("name", slow_after(2, CONFIGS))
def test_a_model_under_our_own_names_exports_verifies_and_runs(name, make_folder, tmp_path):
    config = CONFIGS[name]
    tensors = random_tensors(config)
    exported = export_model(make_folder({"model": config.to_json()}, tensors), tmp_path / "bundle", verify="quick")
    assert exported.report is not None
    assert exported.manifest.model == config
    runner = load(exported.path)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 40).tolist()
    expected = reference(config, tensors, tokens)
    assert np.abs(runner.forward(tokens) - expected).max() <= 1e-5 * np.abs(expected).max()
    first = runner.generate(tokens, max_new_tokens=1).token_ids
    assert first == [int(expected[-1].argmax())]


def test_a_config_may_be_written_by_hand(make_folder):
    """Whole numbers where the config has floats, fields in any order, defaults left out, blocks repeated."""
    data = {
        "vocab_size": 131, "hidden_size": 64, "context_length": 32, "tied_head": True,
        "final_norm": {"eps": 1e-6},
        "blocks": [{
            "repeat": 2,
            "block": {
                "norm": {"eps": 0.001, "kind": "rms_norm"},
                "attention": {
                    "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "scale": 1, "qkv_bias": False,
                    "output_bias": False,
                    "rotary": {"rotary_dim": 16, "base": 10000, "interleaved": False},
                },
                "feed_forward": {"intermediate_size": 96, "activation": "silu", "bias": False},
            },
        }],
    }  # fmt: skip
    source = open_source(make_folder({"model": data}))
    assert len(source.config.blocks) == 2
    assert source.config.blocks[0] == source.config.blocks[1]
    assert source.config.blocks[0].attention.rotary.base == 10000.0
    assert source.config.blocks[0].feed_forward.gated


def test_the_context_may_be_shorter_than_the_model(make_folder):
    config = CONFIGS["mixed"]
    folder = make_folder({"model": config.to_json()}, random_tensors(config))
    source = open_source(folder, 10)
    assert source.config.context_length == 10
    assert source.weights()["position_embedding.weight"].shape == (100, 64)
    with pytest.raises(ConfigError, match="--context-length is 97; this model has positions 1 to 96"):
        open_source(folder, 97)


def refuse(folder, tmp_path, kind, message):
    """Exporting must end with the message, in less than a second of this thread, and leave nothing."""
    start = time.thread_time()
    with pytest.raises(kind, match=message):
        export_model(folder, tmp_path / "bundle")
    assert time.thread_time() - start < 1
    assert not (tmp_path / "bundle").exists()


def test_all_that_is_wrong_with_the_tensors_is_named(make_folder, tmp_path):
    config = CONFIGS["shaw"]
    tensors = random_tensors(config)
    del tensors["blocks.1.attention.key_relations"]
    tensors["blocks.0.feed_forward.down.weight"] = torch.zeros(96, 64)
    tensors["blocks.2.attention_norm.weight"] = torch.zeros(64)
    tensors["head.bias"] = torch.zeros(131)
    refuse(
        make_folder({"model": config.to_json()}, tensors), tmp_path, WeightsError,
        r"(?s)misshapen: blocks\.0\.feed_forward\.down\.weight is \[96, 64\], and the config implies \[64, 96\]"
        r".*missing: blocks\.1\.attention\.key_relations \[11, 16\]"
        r".*unexpected: blocks\.2\.attention_norm\.weight.*unexpected: head\.bias",
    )  # fmt: skip


def test_a_checkpoint_of_another_layout_is_not_taken_for_ours(make_folder, tmp_path):
    config = CONFIGS["2017"]
    tensors = {f"model.{name}": tensor for name, tensor in random_tensors(config).items()}
    refuse(make_folder({"model": config.to_json()}, tensors), tmp_path, WeightsError, r"missing: embedding\.weight")


def changed(path, value):
    """Return a config with another value of one field, given by its path; `...` removes it."""
    data = json.loads(json.dumps(CONFIGS["mixed"].to_json()))
    *parents, last = path
    place = data
    for name in parents:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return {"model": data}


ROTARY = {"rotary_dim": 8, "base": 500.0, "interleaved": True}
FIRST, SECOND, THIRD = (("blocks", index, "block") for index in range(3))
CONTRADICTIONS = {
    "two kinds of positions": (
        (*SECOND, "attention", "rotary"), ROTARY, "AttentionConfig.relative is T5BiasConfig.* None where rotary",
    ),
    "rotary wider than heads": (
        (*FIRST, "attention", "rotary"), {**ROTARY, "rotary_dim": 18}, r"no wider than head_dim \(16\)",
    ),
    "heads that do not divide": ((*FIRST, "attention", "num_kv_heads"), 3, "num_kv_heads is 3; it must be a divisor"),
    "a cache of its own": ((*FIRST, "attention", "shares"), 0, "sharing the keys and values of an earlier block"),
    "global tokens without a window": ((*THIRD, "attention", "window"), None, "window is None; it must be set where"),
    "a window and chunks": ((*FIRST, "attention", "chunk"), 4, "chunk is 4; it must be None where there is a window"),
    "slopes of too few heads": (
        (*SECOND, "attention", "relative"), {"kind": "alibi", "slopes": [0.5]}, "must be given 4 slopes",
    ),
    "too few positions": (("position_embedding", "rows"), 99, "given a row for each of 96 positions"),
    "a gate for nothing": (
        (*FIRST, "feed_forward"),
        {"intermediate_size": 96, "activation": "relu", "bias": False, "gated": False, "up_activation": "tanh"},
        "up_activation is 'tanh'; it must be 'identity' where nothing is gated",
    ),
    "parallel and post-norm": ((*THIRD, "norm_placement"), "post", "norm_placement is 'post'; it must be pre, output"),
    "no blocks": (("blocks",), [], "blocks is .*; it must be at least one block"),
    "a field that is missing": ((*FIRST, "attention", "scale"), ..., r"attention\.scale is missing"),
    "a field that does not exist": ((*FIRST, "attention", "heads"), 4, r"attention\.heads is not a field of Attention"),
    "an unknown kind": ((*SECOND, "attention", "relative"), {"kind": "rpr"}, "must be an object of kind .*'shaw'"),
    "a number as text": (("vocab_size",), "131", "vocab_size is '131'; it must be of type int"),
    "no DecoderConfig at all": (("blocks",), ..., "a DecoderConfig needs blocks"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused_before_weights_are_sought(name, make_folder, tmp_path):
    path, value, message = CONTRADICTIONS[name]
    refuse(make_folder(changed(path, value)), tmp_path, ConfigError, message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "config.json has no model; a generic model requires it"),
        ({"model": CONFIGS["shaw"].to_json(), "hidden_size": 64}, "generic family does not know: hidden_size = 64"),
        ({"model": "shaw"}, "model is 'shaw'; it must be an object of kind"),
        ({"model": {"kind": "poet"}}, "it must be an object of kind .*'seq2seq'"),
    ],
)
def test_a_config_json_that_is_none_is_refused(data, message, make_folder, tmp_path):
    refuse(make_folder(data), tmp_path, ConfigError, message)


def test_parameter_shapes_lists_the_names():
    assert parameter_shapes(CONFIGS["transformer-xl"])["blocks.1.attention.relative_key.weight"] == (64, 64)
