"""Drafts of a smaller model: the same tokens, over every form of cache of both models, and the same tokenizer."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from forms_of_cache import CONTEXT, VOCABULARY, Lengths

from edgeformer.errors import RequestError
from edgeformer.runtime import load, load_causal_lm
from edgeformer.runtime.generation.generate import run_rows
from edgeformer.runtime.generation.speculation import DraftLength, DraftModel
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts
from edgeformer.runtime.tasks import loading

NEW = 40


@pytest.fixture
def always_drafting(monkeypatch):
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 4)


def a_prompt(length=7):
    return np.random.default_rng(length).integers(3, VOCABULARY - 1, length).tolist()


class Wavering:
    """A draft model that knows the answer, but for single tokens: others are drafted where `wrong` says so."""

    def __init__(self, inner, wrong):
        self._inner, self._wrong, self._length = inner, wrong, 0

    def extend(self, tokens):
        self._length += len(tokens)
        self._inner.extend(tokens)

    def draft(self, count):
        drafted = self._inner.draft(count)
        return [(token + ((self._length + place) in self._wrong)) % VOCABULARY for place, token in enumerate(drafted)]


@pytest.mark.parametrize("kind", ["static", "windows", "recurrent", "dynamic"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 6}], ids=["greedy", "sampled"])
def test_a_draft_model_of_any_cache_drafts_what_it_would_write(models, kind, options):
    """The model drafts for itself, so that greedy drafts are right wherever its cache is what it should be."""
    model, prompt = models(kind), a_prompt()
    wanted = {"max_new_tokens": NEW, "ignore_eos": True, **options}
    plain = model.generate(prompt, **wanted)
    row = model.new_row(prompt, **wanted)
    wrong = {len(prompt) + place for place in (5, 6, 13, 20, 28)}
    drafter = Wavering(DraftModel(model.new_decoder(1, CONTEXT), VOCABULARY), wrong)
    decoder = model.new_decoder(1, len(prompt) + NEW)
    run_rows(decoder, [row], drafts=RowDrafts(row, lambda: drafter, Lengths([3, 1, 5, 0])))
    counts = row.speculation
    assert row.tokens == plain.token_ids
    if not options:
        # A wrong token ends a draft and costs those behind it; all others are right.
        assert counts.accepted >= 20 and counts.drafted - counts.accepted <= 5 * len(wrong)


def test_generate_uses_the_draft_model(tiny_llama_bundle, always_drafting):
    model = load_causal_lm(tiny_llama_bundle, draft=tiny_llama_bundle)
    alone = load_causal_lm(tiny_llama_bundle)
    for options in ({}, {"temperature": 0.8, "seed": 3, "logprobs": True}):
        found = model.generate("Once upon a time", max_new_tokens=24, **options)
        plain = alone.generate("Once upon a time", max_new_tokens=24, **options)
        assert found.token_ids == plain.token_ids and found.text == plain.text and plain.speculation is None
        assert found.speculation.accepted > 0
    assert model.stream("Once", max_new_tokens=8).finish().speculation.drafted > 0
    assert model.generate("Once", max_new_tokens=8, num_assistant_tokens=0).speculation is None
    model.use_draft(None)
    assert model.generate("Once", max_new_tokens=8).speculation is None


def test_nothing_is_drafted_beyond_the_draft_models_context(models):
    model = models("static")
    drafter = DraftModel(model.new_decoder(1, 8), VOCABULARY)
    drafter.extend(a_prompt(7))
    assert len(drafter.draft(5)) == 1
    drafter.extend([5])
    assert drafter.draft(5) == []
    longer = DraftModel(model.new_decoder(1, 4), VOCABULARY)
    longer.extend(a_prompt(7))
    assert longer.draft(5) == []


def test_tokens_that_the_model_does_not_have_are_not_drafted(models):
    model, prompt = models("static"), a_prompt()
    written = model.generate(prompt, max_new_tokens=6, ignore_eos=True).token_ids
    largest = max(written)
    drafter = DraftModel(model.new_decoder(1, CONTEXT), largest)
    drafter.extend(prompt)
    assert drafter.draft(6) == written[: written.index(largest)]


def test_a_draft_model_with_another_tokenizer_is_refused(tiny_llama_bundle, llama_bundle, tmp_path):
    message = r"^the draft model must have the tokenizer of the model. .* here they have 2048 and 131 tokens.$"
    with pytest.raises(RequestError, match=message):
        load(tiny_llama_bundle, draft=llama_bundle)
    other = shutil.copytree(tiny_llama_bundle, tmp_path / "other")
    draft = load_causal_lm(other)
    draft.tokenizer.backend.add_tokens(["<|another|>"])
    message = (
        r"^the draft model has another tokenizer: 2049 tokens, and the model has 2048; the first that both do not "
        r"share is 2048 \('<\|another\|>'\). Take a draft model of the same family.$"
    )
    with pytest.raises(RequestError, match=message):
        load_causal_lm(tiny_llama_bundle).use_draft(draft)


def test_bundles_without_tokenizers_need_equal_vocabularies(llama_bundle):
    model = load_causal_lm(llama_bundle, draft=llama_bundle)
    assert model.generate([1, 5, 9], max_new_tokens=6).speculation is not None


def test_a_draft_model_is_for_decoders(tiny_llama_bundle, monkeypatch):
    monkeypatch.setattr(loading, "_open", lambda path, task: SimpleNamespace(task="encoder"))
    with pytest.raises(RequestError, match="^a draft model is for a decoder-only model; .* holds one for encoder.$"):
        load(tiny_llama_bundle, draft=tiny_llama_bundle)
