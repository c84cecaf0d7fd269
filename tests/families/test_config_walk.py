"""Configs as tools write them: every field at transformers' default, null, and each mark of a tool is read.

The maths of a model is not: a field that nobody knows, or a value that no block has, is refused.
"""

import json

import pytest
import transformers

from edgeformer.errors import ConfigError
from edgeformer.families import has_family, read_model_config
from edgeformer.families._neutral import NEUTRAL, TOOLS, WITHOUT_EFFECT

FEW = ["bart", "bert", "gemma3_text", "gemma4_text", "llama", "mixtral", "phi3", "qwen3", "t5"]
INCOMPLETE = {
    "clip": {"architectures": ["CLIPVisionModelWithProjection"]},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_shared_experts": 1, "num_experts_per_tok": 6},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "glm4_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "siglip": {"architectures": ["SiglipVisionModel"]},
    "siglip2": {"architectures": ["Siglip2VisionModel"]},
    "vision-encoder-decoder": {
        "encoder": transformers.ViTConfig().to_dict(),
        "decoder": transformers.TrOCRConfig(cross_attention_hidden_size=768).to_dict(),
    },
}  # fmt: skip
"""Fields that the default config of a class lacks, and without which there is no such model."""

MARKS = {
    "unsloth_fixed": True, "unsloth_version": "2026.8.1", "axolotl_config": "x.yml", "trl_version": "0.30",
    "peft_version": "0.21", "_attn_implementation": "eager", "attn_implementation": "sdpa", "num_logits_to_keep": 0,
    "output_router_logits": False, "eos_token_ids": 0, "quantization_config": None, "rope_scaling": None,
    "some_new_field": None, "tokenizer_class": None, "torch_dtype": "auto", "_flash_attn_2_enabled": True,
    "add_cross_attention": False, "use_mrope": False, "neftune_noise_alpha": 5.0, "model_name": "unsloth/x",
    "mergekit_version": "0.1", "ms_swift": {"tuner": "lora"}, "swift_version": "4.0", "deepspeed_config": {"stage": 3},
    "device_map": "auto", "base_model_tp_plan": {"layers": "x"}, "some_new_table": {}, "some_new_list": [],
    "is_causal": True, "model_max_length": 512, "eos_token": "<end>", "bos_token": "<s>",
    "use_dynamic_ntk": False, "hidden_dropout": 0.1,
}  # fmt: skip
MATHS = {
    "attention_sink_scale": 0.5, "residual_gain": 2.0, "hidden_act": "nosuch", "hidden_activation": "nosuch",
    "activation_function": "nosuch", "feed_forward_proj": "nosuch", "position_embedding_type": "nosuch",
    "quantization_config": {"quant_method": "awq", "bits": 4}, "transformers_weights": "other.safetensors",
    "rope_scaling": {"rope_type": "nosuch", "factor": 2.0}, "layer_types": ["nosuch"],
}  # fmt: skip


def default(model_type):
    config = json.loads(json.dumps(transformers.CONFIG_MAPPING[model_type]().to_dict()))
    return config | {"model_type": model_type} | INCOMPLETE.get(model_type, {})


def refusal(config):
    try:
        read_model_config(config)
    except ConfigError as error:
        return str(error)
    return None


def walk(model_type):
    config = default(model_type)
    assert refusal(config) is None
    for name, value in MARKS.items():
        assert refusal({**config, name: value}) is None, (name, value)
    for name, value in MATHS.items():
        if name == "hidden_act" and "hidden_activation" in config:  # transformers reads the second alone
            continue
        assert refusal({**config, name: value}) is not None, (name, value)
    for name in config.keys() - {"model_type"}:
        refused = refusal({**config, name: None})
        # transformers gives null a meaning of its own in a few fields, or refuses it; there it is refused here by name.
        needed = (f"has no {name}; ", "has sliding layers", "Mamba heads", "rotary_dim is", "has architectures = ")
        assert refused is None or any(said in refused for said in needed), (name, refused)


@pytest.mark.parametrize("model_type", FEW)
def test_fields_that_mean_nothing_are_read_and_others_are_not(model_type):
    walk(model_type)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type", [name for name in transformers.CONFIG_MAPPING if has_family(name) and name not in FEW]
)
def test_the_same_of_every_other_family(model_type):
    walk(model_type)


LLAMA = {"num_hidden_layers": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention"] * 2},
        {"sliding_window": None, "use_sliding_window": False},
        {"sliding_window": 4096, "max_window_layers": 1, "use_sliding_window": False},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "factor": 1.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
        {"num_experts": 0, "num_local_experts": 0, "num_nextn_predict_layers": 0, "qkv_bias": False, "o_bias": False},
    ],
)
def test_what_says_that_a_model_is_plain_is_read(fields):
    plain, same = default("llama") | LLAMA, default("llama") | LLAMA | fields
    assert read_model_config(plain) == read_model_config(same)


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention"]},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 64, "use_sliding_window": True},
        {"mlp_bias": 1, "attention_chunk_size": 64},
        {"is_decoder": True},
    ],
)
def test_what_says_that_a_model_is_not_plain_is_refused(fields):
    assert refusal(default("llama") | LLAMA | fields)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_two_layouts_of_rotary_parameters_must_say_the_same(model_type):
    config = default(model_type)
    said = refusal(config | {"rope_scaling": YARN})
    assert "has both rope_parameters = " in said and "and rope_scaling = " in said


def test_two_layouts_that_agree_are_read_as_one():
    plain = default("llama") | {"rope_parameters": YARN | {"rope_theta": 1e6}}
    old = {"type" if name == "rope_type" else name: value for name, value in plain["rope_parameters"].items()}
    assert read_model_config(plain | {"rope_scaling": old}) == read_model_config(plain)


def test_every_neutral_field_has_its_reason():
    assert all(reason.endswith(".") for reason in WITHOUT_EFFECT.values())
    assert not NEUTRAL.keys() & WITHOUT_EFFECT.keys()
    assert set(TOOLS.values()) >= {"Axolotl", "PEFT", "TRL", "Unsloth"}
