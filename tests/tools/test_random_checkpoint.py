"""Checkpoints of random weights are read by transformers and by edgeformer alike."""

import json

import pytest
import torch
from checkpoints import random_checkpoint
from click.testing import CliRunner
from safetensors import safe_open

from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weights import CheckpointWeights, RandomWeights
from edgeformer.families import read_model_config


def run(*arguments):
    return CliRunner().invoke(random_checkpoint.main, [str(argument) for argument in arguments])


def test_transformers_finds_every_tensor_and_no_other(tiny_checkpoint):
    from transformers import LlamaForCausalLM

    model, found = LlamaForCausalLM.from_pretrained(tiny_checkpoint, output_loading_info=True)

    assert not any(found.values()), found
    expected = RandomWeights(open_source(tiny_checkpoint).config, seed=0)
    query = model.model.layers[1].self_attn.q_proj.weight
    assert torch.equal(query, expected["blocks.1.attention.query.weight"])


def test_edgeformer_reads_what_was_written(tiny_checkpoint):
    source = open_source(tiny_checkpoint)
    weights = source.weights()

    assert isinstance(weights, CheckpointWeights)
    expected = RandomWeights(source.config, seed=0)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_the_seed_changes_the_weights(tiny_checkpoint, tmp_path):
    assert run("tiny", "--output", tmp_path / "other", "--seed", 1).exit_code == 0
    name = "final_norm.weight"
    assert not torch.equal(
        open_source(tiny_checkpoint).weights()[name], open_source(tmp_path / "other").weights()[name]
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_is_stored_and_named_in_the_config(tmp_path, dtype):
    assert run("tiny", "--output", tmp_path / "half", "--dtype", dtype).exit_code == 0
    expected = random_checkpoint.DTYPES[dtype]
    assert {weight.dtype for weight in open_source(tmp_path / "half").weights().values()} == {expected}
    assert str(expected).endswith(json.loads((tmp_path / "half/config.json").read_text())["dtype"])


def test_a_large_checkpoint_comes_in_shards_with_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(random_checkpoint, "SHARD_BYTES", 150_000)
    folder = tmp_path / "shards"
    assert run("tiny", "--output", folder).exit_code == 0

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 1
    assert sorted(set(index["weight_map"].values())) == shards
    assert all((folder / shard).stat().st_size < 160_000 for shard in shards)
    for name, shard in index["weight_map"].items():
        with safe_open(folder / shard, framework="pt") as file:
            assert name in file.keys()  # noqa: SIM118 - safe_open is no mapping
    assert len(open_source(folder).weights()) == len(index["weight_map"])


def test_the_named_geometries_have_the_sizes_of_their_models():
    from edgeformer.manifest.accounting import account

    sizes = {
        name: account(read_model_config(hf_config)[1]).parameters
        for name, hf_config in random_checkpoint.GEOMETRIES.items()
    }
    assert sizes == {
        "smollm2-135m": 134_515_008, "tinyllama-1.1b": 1_100_048_384, "llama-3.1-8b": 8_030_261_248,
        "olmoe-1b-7b": 6_919_161_856, "tiny": 106_816,
        "granite-4.0-h-350m": 340_332_224, "granite-4.0-h-1b": 1_461_538_368,
    }  # fmt: skip


def test_every_expert_is_a_tensor_of_its_own(tmp_path, monkeypatch):
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 64, "num_experts": 10}
    small = random_checkpoint.GEOMETRIES["olmoe-1b-7b"] | sizes
    monkeypatch.setitem(random_checkpoint.GEOMETRIES, "tiny", small)
    assert run("tiny", "--output", tmp_path / "experts").exit_code == 0
    source = open_source(tmp_path / "experts")
    weights, expected = source.weights(), RandomWeights(source.config, seed=0)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert any("experts.9.down_proj" in name for name in weights._stored)


def test_a_tokenizer_is_copied(tmp_path, monkeypatch):
    from edgeformer.checkpoints.found_model import PRESETS

    vocabulary = json.loads((PRESETS / "tiny-llama/config.json").read_text())["vocab_size"]
    monkeypatch.setitem(random_checkpoint.GEOMETRIES["tiny"], "vocab_size", vocabulary)
    assert run("tiny", "--output", tmp_path / "text", "--tokenizer", PRESETS / "tiny-llama").exit_code == 0
    assert (tmp_path / "text/tokenizer.json").read_bytes() == (PRESETS / "tiny-llama/tokenizer.json").read_bytes()


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(tmp_path, monkeypatch):
    from edgeformer.checkpoints.found_model import PRESETS

    monkeypatch.setitem(random_checkpoint.GEOMETRIES["tiny"], "vocab_size", 100)
    result = run("tiny", "--output", tmp_path / "text", "--tokenizer", PRESETS / "tiny-llama")
    assert result.exit_code == 1
    assert "tokens, and this geometry has embeddings for 100" in result.output
    assert not (tmp_path / "text").exists()


def test_a_folder_that_exists_is_left_alone(tiny_checkpoint):
    result = run("tiny", "--output", tiny_checkpoint)
    assert result.exit_code == 1
    assert "exists; give --output a new folder" in result.output


def test_an_own_config_is_written_as_transformers_stores_it(tmp_path):
    from transformers import Lfm2Config, Lfm2ForCausalLM

    config = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    text = Lfm2Config(vocab_size=99, layer_types=["conv", "full_attention"], num_hidden_layers=2, **sizes)
    config.write_text(text.to_json_string())
    assert run(config, "--output", tmp_path / "lfm2").exit_code == 0
    model, found = Lfm2ForCausalLM.from_pretrained(tmp_path / "lfm2", output_loading_info=True)
    assert not any(found.values()), found
    expected = RandomWeights(open_source(tmp_path / "lfm2").config, seed=0)
    stored = model.model.layers[0].conv.conv.weight
    assert torch.equal(stored[:, 0], expected["blocks.0.recurrent.conv_weight"])
    assert "neither a file nor one of smollm2-135m" in run("nope", "--output", tmp_path / "none").output
