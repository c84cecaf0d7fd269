"""The llama family reads config.json and tensors strictly: it refuses unknown fields and tensors by name."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from edgeformer.checkpoints.source import open_source
from edgeformer.errors import ConfigError, WeightsError
from edgeformer.families import family_names, read_model_config
from edgeformer.layers.position import rotary_frequencies

BASE = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip


def read(context_length=None, **options):
    return read_model_config(BASE | options, context_length)[1]


def test_defaults_are_those_of_the_format():
    config = read()
    attention = config.blocks[0].attention
    assert (attention.num_kv_heads, attention.head_dim, attention.scale) == (4, 16, 0.25)
    assert (attention.qkv_bias, config.tied_head, config.context_length) == (False, False, 256)
    assert (attention.rotary.base, attention.rotary.scaling) == (10000.0, None)


def test_the_layouts_of_transformers_4_and_5_mean_the_same():
    new = read(rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0})
    old = read(rope_theta=500.0, rope_scaling={"type": "linear", "factor": 2.0})
    both = read(rope_theta=500.0, rope_scaling={"rope_type": "linear", "type": "linear", "factor": 2.0})
    assert new == old == both


ROPE = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "proportional": {"partial_rotary_factor": 0.5, "factor": 2.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-all": {
        "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False,
        "mscale": 0.7, "mscale_all_dim": 1.2,
    },
    "yarn-given": {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3},
    "longrope": {
        "factor": 2.0, "original_max_position_embeddings": 256, "short_factor": [1.0 + i for i in range(8)],
        "long_factor": [9.0] * 8,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROPE)
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_frequencies_are_those_of_transformers(name, base):
    kind = name.split("-")[0]
    parameters = {"rope_type": kind, "rope_theta": base, **ROPE[name]}
    rotary = read(rope_parameters=parameters).blocks[0].attention.rotary
    theirs = transformers.LlamaConfig(**BASE, rope_parameters=dict(parameters))
    if kind == "default":
        expected, factor = base ** -(torch.arange(0, 16, 2) / 16), 1.0
    else:
        expected, factor = ROPE_INIT_FUNCTIONS[kind](theirs, device=None)
    torch.testing.assert_close(rotary_frequencies(rotary).float(), expected, rtol=1e-6, atol=0)
    assert math.isclose(getattr(rotary.scaling, "attention_factor", 1.0), factor, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sliding_window": 128},
            r"fields that the llama family does not know: sliding_window = 128\. They may change",
        ),
        ({"hidden_act": "mish"}, "hidden_act = 'mish', which is not supported here; supported: gelu, gelu_fast"),
        ({"num_key_value_heads": 3}, r"num_kv_heads is 3; it must be a divisor of num_heads \(4\)"),
        ({"vocab_size": 0}, "DecoderConfig.vocab_size is 0; it must be positive"),
        ({"hidden_size": None}, "config.json has no hidden_size; a llama model requires it"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "RoPE scaling 'spiral' is not supported; supported: default"),
        ({"rope_parameters": {"rope_type": "linear"}}, "RoPE scaling 'linear' requires factor"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "twist": 1}},
            "parameters that are not known: twist",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "parameters that are not known: partial_rotary_factor"),
        (
            {"rope_parameters": {"rope_type": "longrope", **ROPE["longrope"], "short_factor": [1.0]}},
            "must be given 8 factors, one for each pair",
        ),
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported. Supported families: .*llama"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        read(**options)


def test_longrope_has_two_tables_beyond_its_original_length():
    parameters = {"rope_type": "longrope", **ROPE["longrope"], "original_max_position_embeddings": 64}
    for length, above in ((64, None), (65, 64), (None, 64)):
        config = read(length, rope_parameters=parameters)
        scaling = config.blocks[0].attention.rotary.scaling
        assert (config.context_length, config.short_context) == (length or 256, above)
        assert scaling.factors == tuple(ROPE["longrope"]["short_factor"])
        assert above is None or scaling.long.factors == tuple(ROPE["longrope"]["long_factor"])


@pytest.mark.parametrize("length", [0, 257, -1])
def test_a_context_that_the_model_does_not_have_is_refused(length):
    with pytest.raises(ConfigError, match=rf"--context-length is {length}; this model has positions 1 to 256"):
        read(length)


def test_every_family_is_a_model_type_with_a_summary():
    from edgeformer.families import load_family

    assert "llama" in family_names()
    assert all(load_family(name).summary for name in family_names())


@pytest.fixture
def copy(llama_folder, tmp_path):
    return Path(shutil.copytree(llama_folder, tmp_path / "copy"))


def rewrite(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_all_that_is_wrong_with_the_tensors_is_said_at_once(copy):
    def change(tensors):
        del tensors["model.norm.weight"]
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 64)
        tensors["model.layers.0.mlp.extra.weight"] = torch.zeros(1)

    rewrite(copy, change)
    with pytest.raises(WeightsError) as caught:
        open_source(copy).weights()
    text = str(caught.value)
    assert "missing: model.norm.weight [64]" in text
    assert "misshapen: model.layers.0.mlp.up_proj.weight is [3, 64], and the config implies [96, 64]" in text
    assert "unexpected: model.layers.0.mlp.extra.weight" in text
    assert text.endswith("Check that config.json and the weights belong together.")


def test_a_stored_rotation_table_equal_to_the_config_is_left_out(copy):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    table = 10000.0 ** (-torch.arange(8) / 8)
    rewrite(copy, lambda tensors: tensors.update({name: table}))
    assert len(open_source(copy).weights()) == 3 * 9 + 3
    rewrite(copy, lambda tensors: tensors.update({name: table.flip(0)}))
    with pytest.raises(WeightsError, match=f"different: {name} does not hold the frequencies that config.json implies"):
        open_source(copy).weights()


def test_a_tied_head_may_be_stored_as_well(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    assert "head.weight" not in open_source(copy).weights()


def test_a_truncated_checkpoint_is_named(copy):
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a whole safetensors file .*Download it again"):
        open_source(copy).weights()


def test_a_missing_shard_is_named(make_llama):
    folder = make_llama(shard_size="40KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(WeightsError, match=rf"{shard.name} is missing; model\.safetensors\.index\.json lists it"):
        open_source(folder).weights()


def test_pickled_weights_are_not_read(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(
        WeightsError, match=r"pytorch_model\.bin is a pickle, which is not read: save it as safetensors"
    ):
        open_source(copy).weights()


def test_a_weight_beyond_float16_is_named(copy, tmp_path):
    from edgeformer.errors import ExportError
    from edgeformer.export import export_model

    rewrite(copy, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"].mul_(1e6))
    with pytest.raises(
        ExportError, match=r"blocks\.1\.feed_forward\.up\.weight holds values up to .*beyond float16's 65504"
    ):
        export_model(copy, tmp_path / "bundle", precision="fp16")
    assert not (tmp_path / "bundle").exists()


def test_a_width_is_read_only_where_no_layer_has_another():
    """transformers' own config of Qwen3.5 with experts has no intermediate_size: no layer has that width."""
    fields = transformers.Qwen3_5MoeTextConfig(num_hidden_layers=2, vocab_size=131, moe_intermediate_size=48).to_dict()
    assert "intermediate_size" not in fields
    config = read_model_config(fields, 32)[1]
    assert {block.feed_forward.expert.intermediate_size for block in config.blocks} == {48}
    with pytest.raises(ConfigError, match="config.json has no intermediate_size; a llama model requires it"):
        read_model_config({name: value for name, value in BASE.items() if name != "intermediate_size"}, 32)
