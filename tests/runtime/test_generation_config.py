"""One typed config says how a model generates; its fields are the keywords of `generate`."""

import json
from dataclasses import fields, replace

import pytest
import transformers

from edgeformer.checkpoints.found_model import find_model
from edgeformer.errors import BundleError, ConfigError, RequestError
from edgeformer.options.generation_fields import (
    GENERATION_FIELDS,
    UNSUPPORTED,
    WITHOUT_EFFECT_ON_TOKENS,
)
from edgeformer.runtime import GenerationConfig, load_causal_lm
from edgeformer.runtime.generation.beam_search import BeamSearch
from edgeformer.runtime.generation.generation_config import GenerationOptions
from edgeformer.runtime.generation.sampling.dry import Dry
from edgeformer.runtime.generation.sampling.logits_rules import Rules
from edgeformer.runtime.generation.sampling.sampling import Sampling
from edgeformer.runtime.generation.sampling.structured_output import StructuredOutput


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load_causal_lm(tiny_llama_bundle)


def names(kind):
    return {field.name for field in fields(kind)}


def test_the_keywords_of_generate_are_the_fields_of_the_config():
    assert set(GenerationOptions.__annotations__) == names(GenerationConfig)


def test_every_option_is_a_config_field_with_the_same_default():
    parts = (
        names(Sampling)
        | names(Rules)
        | names(Dry)
        | names(StructuredOutput)
        | names(BeamSearch) - {"num_return_sequences"}
    )
    of_the_loop = {
        "max_new_tokens", "max_length", "stop", "ignore_eos", "logprobs", "top_logprobs", "prompt_lookup_num_tokens",
        "max_matching_ngram_size", "num_assistant_tokens", "stop_token_ids", "skip_special_tokens",
        "thinking_budget",
    }  # fmt: skip
    assert names(GenerationConfig) == parts | of_the_loop
    config = GenerationConfig()
    assert (config.sampling, config.rules, config.dry) == (Sampling(), Rules(), Dry())
    assert config.structured_output == StructuredOutput()
    assert config.beam_search() == BeamSearch()


def test_every_field_reaches_its_part():
    values = {
        "top_k": 5, "top_p": 0.5, "min_p": 0.25, "seed": 3, "temperature": 0.5, "repetition_penalty": 2.0,
        "no_repeat_ngram_size": 3, "bad_words_ids": ((1, 2),), "min_length": 4, "min_new_tokens": 2,
        "forced_bos_token_id": 6, "forced_eos_token_id": 7, "suppress_tokens": (8,), "begin_suppress_tokens": (9,),
        "typical_p": 0.5, "xtc_probability": 0.5, "xtc_threshold": 0.2, "logit_bias": ((3, -1.0),),
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "dry_multiplier": 0.8, "dry_base": 2.0,
        "dry_allowed_length": 3, "dry_penalty_last_n": 64, "dry_sequence_breakers": (".",),
        "json_schema": "{}", "regex": "a", "grammar": "start: A",
        "num_beams": 4, "length_penalty": 2.0, "early_stopping": "never", "top_h": 0.5, "epsilon_cutoff": 0.1,
        "eta_cutoff": 0.1, "sequence_bias": (((1, 2), 0.5),), "encoder_repetition_penalty": 2.0,
        "encoder_no_repeat_ngram_size": 2, "remove_invalid_values": True, "renormalize_logits": True,
        "exponential_decay_length_penalty": (2, 1.5),
    }  # fmt: skip
    for name, value in values.items():
        config = GenerationConfig(**{name: value})
        parts = (config.rules, config.sampling, config.dry, config.structured_output, config.beam_search())
        part = next(each for each in parts if hasattr(each, name))
        assert getattr(part, name) == value != getattr(type(part)(), name)


def test_fields_are_named_as_in_transformers():
    of_openai = {"stop", "seed", "logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty"}
    of_llama_cpp = {"ignore_eos", "xtc_probability", "xtc_threshold", *names(Dry), *names(StructuredOutput)}
    of_vllm = {"stop_token_ids", "skip_special_tokens", "thinking_budget"}
    known = set(transformers.GenerationConfig().to_dict())
    assert names(GenerationConfig) - known == of_openai | of_llama_cpp | of_vllm


def test_a_file_sets_only_fields_that_transformers_has():
    data = {"do_sample": True, "seed": 3, "presence_penalty": 1.0, "typical_p": 0.5}
    assert GenerationConfig.from_dict(data) == GenerationConfig(temperature=1.0, top_k=50, typical_p=0.5)


def test_keywords_override_the_config_passed(model):
    config = GenerationConfig(max_new_tokens=6, temperature=0.9, seed=3)
    expected = model.generate("Once", max_new_tokens=6, temperature=0.9, seed=3)
    assert model.generate("Once", config=config).token_ids == expected.token_ids
    assert model.stream("Once", config=config).finish().token_ids == expected.token_ids
    assert model.generate("Once", config=config, max_new_tokens=4).token_ids == expected.token_ids[:4]
    other = model.generate("Once", config=config, seed=4).token_ids
    assert other == model.generate("Once", max_new_tokens=6, temperature=0.9, seed=4).token_ids != expected.token_ids


def test_rules_and_max_length_work_in_a_decoder_too(model):
    free = model.generate("Once upon a time", max_new_tokens=8).token_ids
    ruled = model.generate("Once upon a time", max_new_tokens=8, suppress_tokens=free[:1]).token_ids
    assert free[0] not in ruled
    prompt = model.encode("Once upon a time")
    assert len(model.generate(prompt, config=GenerationConfig(max_length=len(prompt) + 3)).token_ids) == 3
    with pytest.raises(RequestError, match="max_length allows 2 with the new ones"):
        model.generate(prompt, max_length=2)


def test_lists_make_equal_configs_and_every_config_is_hashable():
    one = GenerationConfig(stop="x", bad_words_ids=[[1, 2]], suppress_tokens=[3])
    other = GenerationConfig(stop=["x"], bad_words_ids=((1, 2),), suppress_tokens=(3,))
    assert one == other and hash(one) == hash(other)
    assert replace(one, stop=()) != one


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temprature": 1},
            "^there is no option temprature; there are bad_words_ids, .*, stop. Did you mean temperature.$",
        ),
        ({"top_p": 2.0}, "^top_p is 2.0; it must be above 0 and at most 1"),
        ({"min_length": -1}, "^min_length is -1; it must be 0"),
        ({"num_beams": 2}, "^beam search is for encoder-decoders; use num_beams=1 with a decoder-only model.$"),
        ({"num_beams": 2, "temperature": 1.0}, "^num_beams searches and temperature draws; give only one of them.$"),
        ({"top_logprobs": 2}, "^top_logprobs is 2, which needs logprobs=True.$"),
        ({"top_logprobs": -1, "logprobs": True}, "^top_logprobs is -1; it must be at least 0.$"),
        ({"logprobs": 1}, r"^logprobs is 1 \(int\); it must be True or False.$"),
        ({"logprobs": True, "num_beams": 2}, "^a beam search returns scores of texts, not logprobs of tokens"),
        ({"logit_bias": {9999: 1.0}}, "^logit_bias has the token id 9999, outside 0 to 2047"),
        ({"logit_bias": {3: float("inf")}}, "^logit_bias of token 3 is inf; it must be a finite number, or -inf"),
        ({"logit_bias": {"3": 1.0}}, r"^a token of logit_bias is '3' \(str\); it must be a whole number.$"),
        ({"logit_bias": 3}, r"^logit_bias is 3 \(int\); it must be a mapping of token ids to numbers.$"),
        ({"presence_penalty": float("nan")}, "^presence_penalty is nan; it must be finite; 0 is off.$"),
        ({"frequency_penalty": float("inf")}, "^frequency_penalty is inf; it must be finite; 0 is off.$"),
        ({"num_return_sequences": 2}, "^num_return_sequences is 2, but without a temperature all of them are the same"),
        ({"num_return_sequences": 0}, "^num_return_sequences is 0; it must be between 1 and 65,536.$"),
        ({"forced_bos_token_id": 9999}, "^forced_bos_token_id has the token id 9999, outside 0 to 2047"),
    ],
)
def test_what_a_decoder_cannot_do_says_why(model, options, message):
    with pytest.raises(RequestError, match=message):
        model.generate("Hi", **options)


def test_an_unknown_keyword_is_a_type_error_too():
    with pytest.raises(TypeError, match="there is no option prompts"):
        GenerationConfig().override({"prompts": 1})


def test_a_checkpoints_file_is_read_as_transformers_reads_it(tmp_path):
    data = {
        "do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "eos_token_id": [1, 2],
        "max_length": 40, "suppress_tokens": None, "transformers_version": "5.0",
    }  # fmt: skip
    (tmp_path / "generation_config.json").write_text(json.dumps(data))
    read = GenerationConfig.from_folder(tmp_path)
    assert read == GenerationConfig(temperature=0.6, top_k=50, top_p=0.9, repetition_penalty=1.1, max_length=40)
    # Without do_sample the temperature has no effect, as in transformers.
    assert GenerationConfig.from_dict(data | {"do_sample": False}) == replace(read, temperature=0, top_k=0, top_p=1.0)


def test_the_file_of_a_bundle_can_be_read(model):
    assert GenerationConfig.from_folder(model.folder) == GenerationConfig() == model.generation_config


def test_min_new_tokens_replaces_min_length_as_in_transformers():
    assert GenerationConfig(min_length=9, min_new_tokens=2).rules == Rules(min_new_tokens=2)
    assert GenerationConfig.from_dict({"min_length": 9, "min_new_tokens": 0}) == GenerationConfig()
    assert GenerationConfig(min_length=9).override({"min_new_tokens": 0}) == GenerationConfig()
    assert GenerationConfig(min_length=9).rules == Rules(min_length=9)


def test_every_transformers_field_is_read_refused_or_harmless():
    kinds = [set(GENERATION_FIELDS), set(UNSUPPORTED), set(WITHOUT_EFFECT_ON_TOKENS)]
    known = set(transformers.GenerationConfig().to_dict())
    assert known <= set.union(*kinds)
    assert sum(map(len, kinds)) == len(set.union(*kinds))
    of_single_models = {
        "forced_decoder_ids",
        "lang_to_id",
        "no_timestamps_token_id",
        "task_specific_params",
        "task_to_id",
    }
    assert set.union(*kinds) - known <= of_single_models
    assert all(reason.endswith(".") for reason in WITHOUT_EFFECT_ON_TOKENS.values())


NAMES = sorted(transformers.GenerationConfig().to_dict())


@pytest.mark.parametrize("name", NAMES)
def test_a_transformers_field_is_obeyed_refused_or_harmless(tmp_path, name):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    value = 2 if name != "stop_strings" else ["x"]
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": name != "num_beams", name: value}))
    if name in UNSUPPORTED:
        with pytest.raises(RequestError, match=f"^the generation config has {name} = "):
            GenerationConfig.from_folder(tmp_path)
        with pytest.raises(ConfigError, match=f" generates with {name} = .*, which the runtime does not have"):
            find_model(tmp_path).generation_defaults()
    elif name in WITHOUT_EFFECT_ON_TOKENS:
        assert GenerationConfig.from_folder(tmp_path) == GenerationConfig.from_dict({"do_sample": True})
        assert name not in find_model(tmp_path).generation_defaults()
    else:
        assert name in GENERATION_FIELDS and name in find_model(tmp_path).generation_defaults()
        assert name in names(GenerationConfig) | {"do_sample", "decoder_start_token_id"}


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_a_field_at_a_value_that_changes_nothing_is_read(name):
    for value in (None, *UNSUPPORTED[name]):
        assert GenerationConfig.from_dict({name: value, "do_sample": True}).temperature == 1


def test_fields_that_the_runtime_lacks_are_refused_by_name():
    with pytest.raises(RequestError, match="the generation config has max_time = 5, which this runtime does not"):
        GenerationConfig.from_dict({"max_time": 5})
    assert GenerationConfig.from_dict({"top_h": 0.5}) == GenerationConfig()  # only sampling reads it


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_file_that_cannot_be_read_says_why(tmp_path, content):
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(BundleError, match=r"generation_config\.json cannot be read: "):
        GenerationConfig.from_folder(tmp_path)
