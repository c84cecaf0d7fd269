"""Tokens with drafts are those without, for every form of cache, wherever drafts are wrong."""

import numpy as np
import pytest
from forms_of_cache import CONTEXT, KINDS, VOCABULARY

from edgeformer.errors import RequestError
from edgeformer.runtime import GenerationConfig
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts

NEW = 40
LENGTHS = [3, 1, 6, 0, 2]


def a_prompt(seed):
    return np.random.default_rng(seed).integers(3, VOCABULARY - 1, 5 + seed).tolist()


def places(seed, prompt, share):
    rng = np.random.default_rng(seed + 100)
    return [len(prompt) + place for place in range(NEW) if rng.random() < share]


def check_same(found, plain):
    """Tokens are equal, and their log-probabilities up to what another order of sums makes of float32."""
    assert found.token_ids == plain.token_ids
    assert [each.token_id for each in found.logprobs] == plain.token_ids
    expected = [each.logprob for each in plain.logprobs]
    np.testing.assert_allclose([each.logprob for each in found.logprobs], expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "sampled"])
def test_tokens_are_those_without_drafts(models, speculate, kind, options):
    model = models(kind)
    accepted = rejected = 0
    for seed, share in enumerate([0.0, 0.1, 0.3, 0.6, 1.0]):
        prompt, wanted = a_prompt(seed), {"max_new_tokens": NEW, "ignore_eos": True, "logprobs": True, **options}
        plain = model.generate(prompt, **wanted)
        found = speculate(model, prompt, plain.token_ids, LENGTHS, places(seed, prompt, share), **wanted)
        check_same(found, plain)
        counts = found.speculation
        # The first token comes of the prompt, every other one of a run or of a draft.
        assert counts.runs + counts.accepted == NEW - 1
        accepted, rejected = accepted + counts.accepted, rejected + counts.drafted - counts.accepted
    assert accepted > 50 and rejected > 50


@pytest.mark.parametrize("kind", ["static", "windows", "recurrent", "dynamic"])
def test_tokens_are_others_where_wrong_drafts_stay(models, speculate, kind, monkeypatch):
    """The negative control of the test above: the cache does remember what is not taken back."""
    model, prompt = models(kind), a_prompt(3)
    wanted = {"max_new_tokens": NEW // 2, "ignore_eos": True, "logprobs": True}
    plain = model.generate(prompt, **wanted)
    monkeypatch.setattr(RowDrafts, "settle", lambda self, decoder, place, wrong: None)
    new_decoder = type(model).new_decoder
    monkeypatch.setattr(type(model), "new_decoder", lambda self, rows, size: new_decoder(self, rows, CONTEXT))
    with pytest.raises((AssertionError, UserWarning), match="the text is another one|Not equal to tolerance"):
        check_same(speculate(model, prompt, plain.token_ids, [3], places(3, prompt, 0.6), **wanted), plain)


def test_a_right_draft_costs_one_run(models, speculate):
    model, prompt = models("static"), a_prompt(1)
    plain = model.generate(prompt, max_new_tokens=NEW, ignore_eos=True)
    found = speculate(model, prompt, plain.token_ids, [12], max_new_tokens=NEW, ignore_eos=True)
    counts = found.speculation
    assert (counts.runs, counts.verifications, counts.drafted, counts.accepted) == (3, 3, 36, 36)
    assert counts.mean_accepted == 12


def test_no_run_goes_beyond_what_the_request_can_use(models, speculate):
    model, prompt = models("static"), a_prompt(1)
    plain = model.generate(prompt, max_new_tokens=8, ignore_eos=True)
    found = speculate(model, prompt, plain.token_ids, [64], max_new_tokens=8, ignore_eos=True)
    assert (found.speculation.runs, found.speculation.drafted) == (1, 6)


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "no_repeat_ngram_size": 3},
        {"temperature": 0.9, "top_p": 0.9, "seed": 1, "dry_multiplier": 0.8, "logit_bias": {40: 3.0}},
        {"xtc_probability": 0.5, "temperature": 1.0, "seed": 5, "min_new_tokens": 12, "forced_eos_token_id": 9},
    ],
    ids=["penalties", "filters", "draws"],
)
def test_rules_and_filters_see_what_they_see_without_drafts(models, speculate, options):
    model, prompt = models("static"), a_prompt(2) * 2
    plain = model.generate(prompt, max_new_tokens=NEW, **options)
    found = speculate(model, prompt, plain.token_ids, LENGTHS, places(2, prompt, 0.2), max_new_tokens=NEW, **options)
    assert found.token_ids == plain.token_ids and found.finish_reason == plain.finish_reason
    assert found.speculation.accepted > 0


def test_processors_are_called_once_for_every_token_in_order(models, speculate):
    model, prompt, seen = models("static"), a_prompt(0), {"plain": [], "drafts": []}

    def watching(name):
        def watch(ids, logits):
            seen[name].append(ids.tolist())
            return logits

        return watch

    wanted = {"max_new_tokens": 12, "ignore_eos": True}
    plain = model.generate(prompt, logits_processors=[watching("plain")], **wanted)
    speculate(model, prompt, plain.token_ids, [4], [9], logits_processors=[watching("drafts")], **wanted)
    assert seen["plain"] == seen["drafts"] and len(seen["plain"]) == 12


def test_beams_take_no_drafts():
    with pytest.raises(RequestError, match="prompt_lookup_num_tokens does not work with beams; use num_beams=1"):
        GenerationConfig(num_beams=2, prompt_lookup_num_tokens=3)
