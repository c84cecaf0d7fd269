"""Rules change logits as the logits processors of transformers do, in the order in which `generate` puts them."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

from edgeformer.errors import RequestError
from edgeformer.runtime import GenerationConfig

VOCAB = 23
EOS = frozenset({2, 5})
MAX_LENGTH = 9

# What generation configs call the rules, each on its own and some together.
RULES = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"bad_words_ids": [[7]]},
    {"bad_words_ids": [[7], [2], [3, 4], [3, 2], [3], [1, 1, 1], [1, 0, 1, 0]]},
    {"min_length": 6},
    {"min_new_tokens": 4},
    {"forced_bos_token_id": 11},
    {"forced_eos_token_id": 2},
    {"suppress_tokens": [1, 4, 2, VOCAB + 5]},
    {"begin_suppress_tokens": [0, 2]},
    {"begin_suppress_tokens": [0, 2], "forced_bos_token_id": 0},
    # Each later one overrules an earlier one.
    {"repetition_penalty": 3.0, "no_repeat_ngram_size": 2, "bad_words_ids": [[1]], "min_length": 5},
    {"min_length": 9, "forced_eos_token_id": 2},
    {"bad_words_ids": [[11]], "forced_bos_token_id": 11, "forced_eos_token_id": 11},
    {"forced_bos_token_id": 11, "suppress_tokens": [12], "begin_suppress_tokens": [11]},
    {"forced_eos_token_id": 2, "min_new_tokens": 8, "suppress_tokens": [5]},
    {"sequence_bias": [[[7], 4.5], [[3, 4], -2.25], [[3, 7], 1.3], [[1, 1, 7], 0.7], [[7], 3.5], [[0, 4], -9.0]]},
    {"sequence_bias": [[[1, 1, 7], 0.7], [[3, 7], 0.3], [[7], 0.1]], "repetition_penalty": 1.2},
    {"encoder_repetition_penalty": 1.6},
    {"encoder_repetition_penalty": 0.7, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 2},
    {"encoder_no_repeat_ngram_size": 3, "no_repeat_ngram_size": 2},
    {"encoder_no_repeat_ngram_size": 9, "suppress_tokens": [1]},
    {"remove_invalid_values": True, "suppress_tokens": [1], "bad_words_ids": [[7]]},
    {"exponential_decay_length_penalty": [2, 1.5]},
    {"exponential_decay_length_penalty": [0, 0.9], "min_new_tokens": 4},
    {"exponential_decay_length_penalty": [1, 1.2], "suppress_tokens": [2], "sequence_bias": [[[5], 2.0]]},
]

SOURCE = np.array([1, 0, 3, 2, 1, 1, 14])


@pytest.fixture(scope="module")
def model():
    """Any sequence-to-sequence model: `generate` reads its processors from the generation config."""
    sizes = {"vocab_size": VOCAB, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


def _processors(model, options, prompt_length, max_length=MAX_LENGTH, eos=EOS):
    """The list that `generate` makes of a generation config."""
    config = transformers.GenerationConfig(
        **options, max_length=max_length, eos_token_id=sorted(eos), pad_token_id=0, decoder_start_token_id=0
    )
    model._prepare_special_tokens(config, device="cpu")
    source = torch.from_numpy(SOURCE)[None]
    return model._get_logits_processor(config, prompt_length, encoder_input_ids=source, logits_processor=[])


def _transformers(model, options, logits, tokens, prompt_length):
    scores = torch.from_numpy(logits.copy())
    processors = _processors(model, options, prompt_length)
    for processor in processors:
        if isinstance(processor, logits_process.EncoderNoRepeatNGramLogitsProcessor):
            # Every row here is of the one source.
            processor.batch_size = 1
    return processors(torch.from_numpy(tokens), scores).numpy()


def _ours(options, logits, tokens, prompt_length):
    logits = logits.copy()
    lengths = {"prompt_length": prompt_length, "max_length": MAX_LENGTH}
    GenerationConfig(**options).rules.apply(logits, tokens, **lengths, eos=EOS, source=SOURCE)
    return logits


def _case(seed, rows, length, alphabet=VOCAB):
    random = np.random.default_rng(seed)
    logits = (3 * random.standard_normal((rows, VOCAB))).astype(np.float32)
    return logits, random.integers(0, alphabet, (rows, length))


@pytest.mark.parametrize("options", RULES, ids=str)
def test_rules_are_those_of_transformers_bit_for_bit(model, options):
    changed = 0
    for prompt_length in (1, 3):
        for length in range(prompt_length, MAX_LENGTH):
            for seed in range(6):
                # Few different tokens, so that sequences repeat themselves.
                logits, tokens = _case(100 * length + seed, rows=1 + seed, length=length, alphabet=4)
                expected = _transformers(model, options, logits, tokens, prompt_length)
                actual = _ours(options, logits, tokens, prompt_length)
                np.testing.assert_array_equal(actual, expected)
                changed += int((actual != logits).any())
    assert changed, "a rule that never did anything was not compared"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, MAX_LENGTH - 1),
    prompt_length=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.floats(0.2, 4),
            "no_repeat_ngram_size": st.integers(1, 4),
            "bad_words_ids": st.lists(
                st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=6
            ).filter(lambda words: any(word not in ([2], [5]) for word in words)),
            "min_length": st.integers(0, MAX_LENGTH),
            "min_new_tokens": st.integers(0, MAX_LENGTH),
            "forced_bos_token_id": st.integers(1, 6),
            "forced_eos_token_id": st.integers(1, 6),
            "suppress_tokens": st.lists(st.sampled_from([0, 7, 8, 22, 30]), min_size=1),
            "begin_suppress_tokens": st.lists(st.integers(0, 6), min_size=1),
            "sequence_bias": st.lists(
                st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.floats(-9, 9)).map(list), min_size=1
            ),
            "encoder_repetition_penalty": st.floats(0.2, 4),
            "encoder_no_repeat_ngram_size": st.integers(1, 4),
            "exponential_decay_length_penalty": st.tuples(st.integers(0, 5), st.floats(0.5, 2)),
        },
    ),
)
def test_any_of_them_together_are_those_of_transformers(model, seed, length, prompt_length, options):
    length = max(length, prompt_length)
    logits, tokens = _case(seed, rows=4, length=length, alphabet=4)
    expected = _transformers(model, options, logits, tokens, prompt_length)
    np.testing.assert_array_equal(_ours(options, logits, tokens, prompt_length), expected)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"min_length": 9, "forced_eos_token_id": 2}, "ForcedEOSTokenLogitsProcessor"),
        ({"bad_words_ids": [[11]], "forced_eos_token_id": 11}, "ForcedEOSTokenLogitsProcessor"),
        ({"forced_eos_token_id": 2, "begin_suppress_tokens": [2]}, "SuppressTokensAtBeginLogitsProcessor"),
    ],
    ids=str,
)
def test_the_comparison_notices_another_order(model, options, first):
    # Negative control: the same processors, one of them moved to the front, for a token that is first and last.
    length = MAX_LENGTH - 1
    logits, tokens = _case(0, rows=2, length=length)
    processors = _processors(model, options, length)
    processors.sort(key=lambda processor: type(processor) is not getattr(logits_process, first))
    moved = processors(torch.from_numpy(tokens), torch.from_numpy(logits.copy())).numpy()
    assert (moved != _ours(options, logits, tokens, length)).any()


def test_the_penalty_of_a_row_is_that_of_the_row_alone():
    logits, tokens = _case(0, rows=5, length=8)
    options = {"repetition_penalty": 1.3}
    expected = [_ours(options, row, seen, 1) for row, seen in zip(logits, tokens, strict=True)]
    np.testing.assert_array_equal(_ours(options, logits, tokens, 1), np.stack(expected))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_row_of_any_precision_is_changed_in_place(dtype):
    logits = np.arange(6).astype(dtype)
    rules = GenerationConfig(
        repetition_penalty=2.0, no_repeat_ngram_size=2, suppress_tokens=[0], min_new_tokens=9
    ).rules
    rules.apply(logits, np.array([4, 3, 4]), prompt_length=1, max_length=9, eos=frozenset({5}))
    np.testing.assert_array_equal(logits, [-np.inf, 1, 2, -np.inf, 2, -np.inf])
    assert logits.dtype == dtype


@pytest.mark.parametrize("values", [[np.nan, 1, 2], [np.inf, 1, -np.inf], [np.nan] * 3], ids=str)
def test_invalid_values_become_the_numbers_of_transformers(values):
    logits = np.array(values, np.float32)
    expected = logits_process.InfNanRemoveLogitsProcessor()(None, torch.from_numpy(logits.copy())[None])[0]
    GenerationConfig(remove_invalid_values=True).rules.apply(
        logits, np.array([0]), prompt_length=1, max_length=9, eos=EOS
    )
    np.testing.assert_array_equal(logits, expected.numpy())


def test_a_model_of_speech_has_no_source_to_read():
    logits, tokens = _case(0, rows=2, length=3)
    before = logits.copy()
    rules = GenerationConfig(encoder_repetition_penalty=2.0, encoder_no_repeat_ngram_size=1).rules
    assert rules.reads_source and not GenerationConfig(repetition_penalty=2.0).rules.reads_source
    rules.apply(logits, tokens, prompt_length=1, max_length=9, eos=EOS)
    np.testing.assert_array_equal(logits, before)


def test_without_end_tokens_a_minimum_asks_nothing():
    logits, tokens = _case(0, rows=2, length=1)
    before = logits.copy()
    GenerationConfig(min_length=5).rules.apply(logits, tokens, prompt_length=1, max_length=9, eos=frozenset())
    np.testing.assert_array_equal(logits, before)


def test_rules_that_ask_nothing_say_so_and_change_nothing():
    nothing = GenerationConfig(bad_words_ids=[], suppress_tokens=[]).rules
    assert nothing.allows_all
    assert not GenerationConfig(suppress_tokens=[1]).rules.allows_all
    logits, tokens = _case(0, rows=2, length=3)
    logits.flags.writeable = False
    nothing.apply(logits, tokens, prompt_length=1, max_length=4, eos=EOS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 0}, r"^repetition_penalty is 0; it must be above 0; 1 is off\.$"),
        (
            {"encoder_repetition_penalty": 0},
            r"^encoder_repetition_penalty is 0; it must be above 0; 1 is off\.$",
        ),
        (
            {"encoder_no_repeat_ngram_size": -1},
            r"^encoder_no_repeat_ngram_size is -1; it must be 0 \(off\) or larger\.$",
        ),
        ({"sequence_bias": [[[], 1.0]]}, r"^sequence_bias has an empty sequence or a bias that is not finite\.$"),
        ({"sequence_bias": [[[1], float("inf")]]}, r"^sequence_bias has an empty sequence or a bias that is not"),
        ({"sequence_bias": [[[-1], 1.0]]}, r"^sequence_bias has the token id -1; ids must be 0 or larger\.$"),
        (
            {"exponential_decay_length_penalty": (-1, 1.5)},
            r"^exponential_decay_length_penalty is \(-1, 1.5\); it must be a number of new tokens, 0 or larger, and a",
        ),
        ({"exponential_decay_length_penalty": (1, 0.0)}, r"and a factor above 0\.$"),
        ({"repetition_penalty": float("nan")}, r"^repetition_penalty is nan; it must be above 0; 1 is off\.$"),
        ({"no_repeat_ngram_size": -1}, r"^no_repeat_ngram_size is -1; it must be 0 \(off\) or larger\.$"),
        ({"min_length": -2}, r"^min_length is -2; it must be 0 \(off\) or larger\.$"),
        ({"min_new_tokens": -2}, r"^min_new_tokens is -2; it must be 0 \(off\) or larger\.$"),
        (
            {"bad_words_ids": [[1], []]},
            r"^bad_words_ids has an empty sequence; each must have at least one token id\.$",
        ),
        ({"bad_words_ids": [[1, -7]]}, r"^bad_words_ids has the token id -7; ids must be 0 or larger\.$"),
        ({"suppress_tokens": [-1]}, r"^suppress_tokens has the token id -1; ids must be 0 or larger\.$"),
        ({"forced_bos_token_id": -1}, r"^forced_bos_token_id is -1; it must be at least 0\.$"),
        (
            {"forced_eos_token_id": 2, "suppress_tokens": [1, 2]},
            r"^forced_eos_token_id is 2, which is in suppress_tokens too, so that no token could come\.",
        ),
    ],
    ids=str,
)
def test_options_without_meaning_are_refused(options, message):
    with pytest.raises(RequestError, match=message):
        GenerationConfig(**options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"forced_bos_token_id": 10}, "forced_bos_token_id"),
        ({"forced_eos_token_id": 10}, "forced_eos_token_id"),
        ({"bad_words_ids": [[1], [2, 10]]}, "bad_words_ids"),
        ({"sequence_bias": [[[1], 1.0], [[2, 10], 1.0]]}, "sequence_bias"),
    ],
    ids=str,
)
def test_tokens_that_the_model_does_not_have_are_refused(options, name):
    GenerationConfig(**options).rules.check(11)
    with pytest.raises(RequestError, match=rf"^{name} has the token id 10, outside 0 to 9, the model's vocabulary\.$"):
        GenerationConfig(**options).rules.check(10)


def test_tokens_that_the_model_does_not_have_may_be_suppressed():
    rules = GenerationConfig(suppress_tokens=[1, 10], begin_suppress_tokens=[10]).rules
    rules.check(10)
    logits = np.zeros(10, np.float32)
    rules.apply(logits, np.array([0]), prompt_length=1, max_length=9, eos=EOS)
    assert list(np.flatnonzero(logits)) == [1]
