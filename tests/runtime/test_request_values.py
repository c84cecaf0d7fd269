"""Whatever a call is given: it works, or a RequestError names the argument, its value and what would be right."""

import json

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.runtime import GenerationConfig, load, load_causal_lm
from edgeformer.runtime.generation.sampling.sampling import Sampling, distribution


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load_causal_lm(tiny_llama_bundle)


PROMPTS = [
    (None, "^the prompt is None .NoneType.; it must be a text or a list of token ids"),
    (5, "^the prompt is 5 .int.; it must be"),
    (1.5, "^the prompt is 1.5 .float."),
    (True, "^the prompt is True .bool."),
    (b"Once", r"^the prompt is b'Once' .bytes.; it must be .* Decode it first: data.decode\(\)"),
    ({"Once": 1}, "^the prompt is {'Once': 1} .dict."),
    ({5, 6}, "^the prompt is {5, 6} .set."),
    ((id for id in [5, 6]), "^the prompt is <generator "),
    (np.array(5), r"^the prompt is array\(5\) .ndarray."),
    ([5, 6.0], r"^the prompt\[1\] is 6.0 .float.; it must be a whole number.$"),
    ([5, True], r"^the prompt\[1\] is True .bool."),
    ([5, "6"], r"^the prompt\[1\] is '6' .str."),
    ([5, None], r"^the prompt\[1\] is None"),
    (np.array([5.0, 6.0]), r"^the prompt\[0\] is np.float64\(5.0\)"),
    (["Once", None], r"^prompt 1 of the list, None .NoneType.: the prompt is None"),
    (["Once", 5], r"^prompt 1 of the list, 5 .int.: the prompt is 5 .int."),
    ([None], "^the prompt is None"),
    ([], "^the prompt is empty"),
    ("", "^the prompt is empty"),
    ("Once \ud83d upon", r"^the prompt has the lone surrogate '\\ud83d' at character 5, which is half of a character"),
    ([[5, 6], [5, "x"]], r"^prompt 1 of the list, \[5, 'x'\] .list.: the prompt\[1\] is 'x'"),
    ([-1], "^the prompt has token ids outside 0 to 2047"),
    ([10**30], "^the prompt has token ids outside 0 to 2047"),
]


@pytest.mark.parametrize(("prompt", "message"), PROMPTS)
def test_prompts_that_are_none(model, prompt, message):
    with pytest.raises(RequestError, match=message):
        model.generate(prompt, max_new_tokens=1)


def test_prompts_that_are_some(model):
    expected = model.generate([5, 6], max_new_tokens=3).token_ids
    for prompt in ((5, 6), range(5, 7), np.array([5, 6]), np.array([5, 6], np.int32), [np.int64(5), 6]):
        assert model.generate(prompt, max_new_tokens=3).token_ids == expected
    for batch in ([[5, 6]], ((5, 6),), np.array([[5, 6]]), [np.array([5, 6])]):
        assert [each.token_ids for each in model.generate(batch, max_new_tokens=3)] == [expected]


WRONG = [None, "1", b"1", [], {}, 1.5, True, float("nan"), 1j]
OPTIONS = [
    *[("top_k", value) for value in WRONG],
    *[(name, value) for name in ("max_new_tokens", "seed", "forced_bos_token_id") for value in WRONG[1:]],
    *[("num_beams", value) for value in WRONG],
    *[(name, value) for name in ("temperature", "top_p", "length_penalty") for value in WRONG if value != 1.5],
    *[("stop", value) for value in (None, 5, b"x", [5], [None], {"x": 1}, {"x"}, True)],
    *[("suppress_tokens", value) for value in (None, 5, "5", ["5"], [5.0], [True], {5})],
    *[("sequence_bias", value) for value in (5, [5], "5", [[5, 1.0]], [[[5], "x"]], [[["5"], 1.0]])],
    *[("exponential_decay_length_penalty", value) for value in (5, [5], "55", ["x", 1.0], [1, None])],
    *[("remove_invalid_values", value) for value in (1, "yes", [])],
    *[("bad_words_ids", value) for value in (None, 5, [5], [["5"]], "5", [[5.0]])],
]


@pytest.mark.parametrize(("name", "value"), OPTIONS)
def test_options_of_another_type_are_refused_by_name(model, name, value):
    with pytest.raises(RequestError, match=rf"^{name}(\[\d\])* is .*; it must be (a|above|between|finite|0|True)"):
        GenerationConfig().override({name: value}) if value is not None else GenerationConfig(**{name: value})
    if name not in ("num_beams", "length_penalty") and value is not None:
        with pytest.raises(RequestError):
            model.generate("Once", **{name: value})


def test_numbers_of_numpy_are_numbers():
    config = GenerationConfig(top_k=np.int64(5), temperature=np.float32(0.5), max_new_tokens=np.int32(3))
    assert config == GenerationConfig(top_k=5, temperature=0.5, max_new_tokens=3)
    assert json.dumps([config.top_k, config.temperature]) == "[5, 0.5]"


def test_an_unknown_option_is_told_the_nearest_name(model):
    with pytest.raises(RequestError, match="^there is no option max_tokens; .* Did you mean max_new_tokens"):
        model.generate("Once", max_tokens=5)
    with pytest.raises(RequestError, match=r"stop\.$"):
        model.generate("Once", xyz=5)


@pytest.mark.parametrize("temperature", [1e-320, 5e-324, 1e-300])
def test_a_tiny_temperature_takes_the_likeliest_token(model, temperature):
    with np.errstate(all="raise", over="ignore", under="ignore"):
        found = distribution(np.array([1.0, 300.0, -7.0], np.float32), Sampling(temperature=temperature))
    assert found.tolist() == [0.0, 1.0, 0.0]
    greedy = model.generate("Once", max_new_tokens=4).token_ids
    assert model.generate("Once", max_new_tokens=4, temperature=temperature).token_ids == greedy


def test_forward_beyond_the_context_says_so(model):
    too_many = model.manifest.context_length + 1
    with pytest.raises(
        RequestError, match=f"^the text has {too_many} tokens, and the model takes {too_many - 1} at most"
    ):
        model.forward([5] * too_many)


@pytest.mark.parametrize("path", [None, b"bundle", 5, ["bundle"], True])
def test_a_path_that_is_none(path):
    for opener in (load, load_causal_lm):
        with pytest.raises(RequestError, match="^path is .*; it must be the path of a folder"):
            opener(path)


@pytest.mark.parametrize("messages", [None, "Hi", {"role": "user"}, ["Hi"], [None], 5])
def test_messages_that_are_none(model, messages):
    with pytest.raises(RequestError, match="^messages is .*; it must be a list of messages"):
        model.chat(messages)


def test_a_message_with_half_a_character_is_refused(model):
    if model.tokenizer.has_chat_template:
        with pytest.raises(RequestError, match="^the conversation has the lone surrogate"):
            model.chat([{"role": "user", "content": "a\udc00"}])
