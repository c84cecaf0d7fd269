"""A config.json with a value of a wrong kind or size is refused before anything is built or allocated."""

import copy
import json
from pathlib import Path

import pytest

from edgeformer.config import DecoderConfig
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.documents import schema
from edgeformer.errors import ConfigError
from edgeformer.families import read_model_config
from edgeformer.manifest.parts import FileEntry

REAL = Path(__file__).parent / "real_configs"
LLAMA = json.loads((REAL.parents[2] / "edgeformer" / "presets" / "tiny-llama" / "config.json").read_text())
WRONG_KIND = "a field of it has a value of the wrong kind"

VALUES = [
    ("num_hidden_layers", 10**9, r"num_hidden_layers = 1,000,000,000; it must be 1,024 at most"),
    ("num_attention_heads", 10**6, r"num_attention_heads = 1,000,000; it must be 65,536 at most"),
    ("vocab_size", 2**60, r"vocab_size = .*; it must be 9,007,199,254,740,992 at most"),
    ("vocab_size", 10**15, r"describes a model of .* parameters; it may have 10,000,000,000,000 at most"),
    ("vocab_size", True, r"the model\.vocab_size is True; it must be of type int"),
    ("vocab_size", 8192.0, r"the model\.vocab_size is 8192\.0; it must be of type int"),
    ("intermediate_size", "512", r"the model\.blocks\[0\]\.feed_forward\.intermediate_size is '512'|" + WRONG_KIND),
    ("rms_norm_eps", "1e-5", r"norm\.eps is '1e-5'; it must be of type float|" + WRONG_KIND),
    ("rms_norm_eps", float("nan"), r"eps is nan"),
    ("rms_norm_eps", [0.1], WRONG_KIND),
    ("tie_word_embeddings", "yes", r"tied_head is 'yes'; it must be of type bool"),
    ("mlp_bias", 1, r"bias is 1; it must be of type bool"),
    ("hidden_size", "64", rf"{WRONG_KIND}, hidden_size = '64' \(a text, where a number is wanted\)"),
    ("hidden_act", "x" * 10_000, r"hidden_act = 'xxx.*… \(str\), which is not supported"),
    *(("rope_parameters", {"rope_theta": 1e4, "factor": 0} | scaling,
       r"Scaling\.factor is 0\.0; it must be positive") for scaling in (
        {"rope_type": "linear"}, {"rope_type": "yarn"},
        {"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4})),
    ("model_type", ["llama"], r"model_type = \['llama'\]; it must be a text"),
    ("model_type", 3, r"model_type = 3; it must be a text"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "message"), VALUES, ids=range(len(VALUES)))
def test_a_value_of_a_wrong_kind_or_size_is_refused(name, value, message):
    with pytest.raises(ConfigError, match=message) as raised:
        read_model_config(LLAMA | {name: value})
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("window", [0, -4])
def test_a_refused_value_has_its_name_in_config_json(window):
    data = json.loads((REAL / "mistralai--Mistral-7B-v0.1.json").read_text())
    said = rf"config\.json has sliding_window = {window}: AttentionConfig\.window is {window}; it must be positive"
    with pytest.raises(ConfigError, match=said):
        read_model_config(data | {"sliding_window": window})


def test_the_text_model_of_a_bigger_one_must_be_an_object():
    data = json.loads((REAL / "mistralai--Mistral-Small-3.1-24B-Instruct-2503.json").read_text())
    with pytest.raises(ConfigError, match=r"text_config = 3; it must be the config of its text model"):
        read_model_config(data | {"text_config": 3})


@pytest.mark.parametrize("repeat", [0, -1, 10**12, 1.0, True, "2"])
def test_layers_are_counted_before_they_are_repeated(repeat):
    _, config = read_model_config(LLAMA)
    data = copy.deepcopy(schema.to_json(config))
    data["blocks"][0]["repeat"] = repeat
    with pytest.raises(ConfigError, match=r"blocks.*; it must be (1,024 at most|of the form)"):
        schema.from_json(DecoderConfig, data)
    with pytest.raises(ConfigError, match=r"the cache.*; it must be (1,024 at most|of the form)"):
        CacheGeometry.from_json([{"repeat": repeat, "states": []}])


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 1.0, True])
def test_numbers_that_are_no_counts_are_refused(number):
    with pytest.raises(ConfigError, match=r"^bytes is .*; it must be (between|of type int)"):
        schema.from_json(FileEntry, {"bytes": number, "sha256": ""})


def test_what_a_union_and_a_literal_take_has_a_type():
    data = {"kind": "decoder"} | schema.to_json(read_model_config(LLAMA)[1])
    with pytest.raises(ConfigError, match=r"kind is 'decoder2'; it must be one of 'decoder'"):
        schema.from_json(DecoderConfig, data | {"kind": "decoder2"})
