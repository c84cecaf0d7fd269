"""Logits processors of the user's own change what is chosen, row by row, where transformers' would."""

import numpy as np
import pytest
import torch
import transformers

from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.runtime import load_causal_lm, load_seq2seq

VOCABULARY = 61
SOURCES = [[5, 9, 12, 40], [7, 8]]


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load_causal_lm(tiny_llama_bundle)


@pytest.fixture(scope="module")
def t5(make_model, tmp_path_factory):
    """A small T5 as a bundle, and in transformers."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    tokens = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    folder = make_model("t5", 5, auto="AutoModelForSeq2SeqLM", vocab_size=VOCABULARY, **sizes, **tokens)
    bundle = tmp_path_factory.mktemp("bundles") / "t5"
    export_model(folder, bundle, context_length=32, verify=None)
    return load_seq2seq(bundle), transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)


def banned(*tokens):
    def ban(token_ids, logits):
        logits[list(tokens)] = -np.inf
        return logits

    return ban


def test_a_processor_changes_what_is_chosen(model):
    free = model.generate("Once upon a time", max_new_tokens=8).token_ids
    own = model.generate("Once upon a time", max_new_tokens=8, logits_processors=[banned(free[0])]).token_ids
    assert free[0] not in own  # and it is in what the model writes without one
    ruled = model.generate("Once upon a time", max_new_tokens=8, suppress_tokens=[free[0]]).token_ids
    assert own == ruled
    stream = model.stream("Once upon a time", max_new_tokens=8, logits_processors=[banned(free[0])])
    assert stream.finish().token_ids == own


def test_processors_run_after_the_rules_before_sampling(model):
    seen = []

    def first(token_ids, logits):
        seen.append(logits.copy())
        return np.zeros_like(logits)

    def second(token_ids, logits):
        assert not logits.any()
        return np.where(np.arange(len(logits)) == 77, 1, -np.inf)  # another dtype is taken too

    options = {"max_new_tokens": 2, "temperature": 2.0, "suppress_tokens": [5]}
    result = model.generate("Once", logits_processors=[first, second], **options)
    assert result.token_ids == [77, 77]
    assert [logits[5] for logits in seen] == [-np.inf] * 2
    assert all(logits.dtype == np.float32 for logits in seen)


def test_each_row_gets_its_own_tokens(model):
    prompts = [[3, 4, 5], [6]]
    calls = []

    def note(token_ids, logits):
        assert token_ids.dtype == np.int64 and logits.shape == (2048,)
        calls.append(token_ids.tolist())
        return logits

    rows = model.generate(prompts, max_new_tokens=3, logits_processors=[note])
    pairs = list(zip(prompts, rows, strict=True))
    expected = [[*prompt, *row.token_ids[:count]] for prompt, row in pairs for count in range(3)]
    assert sorted(calls) == sorted(expected)
    alone = [model.generate(prompt, max_new_tokens=3).token_ids for prompt in prompts]
    assert [row.token_ids for row in rows] == alone, "a processor that changes nothing changes nothing"


def test_what_a_processor_does_to_its_arguments_stays_there(model):
    def spoil(token_ids, logits):
        kept = logits.copy()
        token_ids[:] = 0
        logits[:] = np.nan
        return kept

    plain = model.generate("Once upon a time", max_new_tokens=5, no_repeat_ngram_size=2).token_ids
    options = {"max_new_tokens": 5, "no_repeat_ngram_size": 2, "logits_processors": [spoil]}
    assert model.generate("Once upon a time", **options).token_ids == plain


def prefer_even(scores):
    """The same change for arrays and tensors [..., V]: odd tokens lose 1.5."""
    scores[..., 1::2] -= 1.5
    return scores


class TheirProcessor(transformers.LogitsProcessor):
    """prefer_even for transformers."""

    def __call__(self, input_ids, scores):
        """Change a copy."""
        return prefer_even(scores.clone())


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 3, "no_repeat_ngram_size": 2}], ids=str)
def test_seq2seq_with_a_processor_equals_transformers(t5, options):
    ours, theirs = t5
    options = {"max_new_tokens": 10, "repetition_penalty": 1.2} | options
    for source in SOURCES:
        expected = theirs.generate(torch.tensor([source]), logits_processor=[TheirProcessor()], **options)
        found = ours.generate(source, logits_processors=[lambda ids, scores: prefer_even(scores)], **options)
        assert found.token_ids == expected[0, 1 : 1 + len(found.token_ids)].tolist()
        # Negative control: without it the text is another.
        assert ours.generate(source, **options).token_ids != found.token_ids


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (lambda ids, logits: None, r"^the logits processor <lambda> returned an array of shape \[\]; it must return"),
        (lambda ids, logits: logits[:3], r"returned an array of shape \[3\]; it must return logits of shape \[61\].$"),
        (lambda ids, logits: logits * np.nan, "^the logits processor <lambda> returned NaN; it must return numbers"),
        (banned(*range(VOCABULARY)), "leave no token|no token can follow"),
    ],
)
def test_a_result_that_is_no_logits_says_so(t5, processor, message, options):
    with pytest.raises(RequestError, match=message):
        t5[0].generate(SOURCES[0], max_new_tokens=3, logits_processors=[processor], **options)
