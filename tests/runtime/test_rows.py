"""The options of a request that rows carry: log-probabilities, biases, OpenAI's penalties, samples, end tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeformer.errors import RequestError
from edgeformer.runtime import GenerationConfig, TokenEvent, TokenLogprobs, load_causal_lm
from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.sampling.token_logprobs import token_logprobs
from edgeformer.runtime.steps.runner import StepRunner

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load_causal_lm(tiny_llama_bundle)


def test_logprobs_are_the_log_softmax_of_the_models_own_logits(model):
    # Neither the rules nor the temperature change them, though both change what is drawn.
    free = model.generate(PROMPT, max_new_tokens=1).token_ids[0]
    options = {"temperature": 1.5, "seed": 2, "logit_bias": {free: -1e9}, "frequency_penalty": 1.0}
    result = model.generate(PROMPT, max_new_tokens=8, logprobs=True, top_logprobs=3, **options)
    prompt = model.encode(PROMPT)
    logits = torch.from_numpy(model.forward(prompt + result.token_ids)).double()[len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).numpy()
    chosen = [each.logprob for each in result.logprobs]
    np.testing.assert_allclose(chosen, expected[np.arange(8), result.token_ids], atol=1e-4)
    for each, row in zip(result.logprobs, expected, strict=True):
        order = np.argsort(-row)[:3]
        assert [token for token, _ in each.top] == order.tolist()
        np.testing.assert_allclose([value for _, value in each.top], row[order], atol=1e-4)
    assert result.logprobs[0].top[0][0] == free != result.token_ids[0]
    # Negative control: the distribution that was drawn from is another one.
    assert np.abs((logits / 1.5).log_softmax(-1).numpy()[np.arange(8), result.token_ids] - chosen).max() > 0.05


def test_logprobs_come_only_where_they_are_asked_for(model):
    assert model.generate(PROMPT, max_new_tokens=2).logprobs is None
    result = model.generate(PROMPT, max_new_tokens=2, logprobs=True)
    assert [(each.token_id, each.top) for each in result.logprobs] == [(token, ()) for token in result.token_ids]


def test_equal_logits_come_in_the_order_of_their_ids():
    logits = np.array([0, 1, 1, -np.inf], np.float32)
    found = token_logprobs(logits, 0, 9)
    assert [token for token, _ in found.top] == [1, 2, 0, 3]
    assert found.top[3][1] == -np.inf
    assert np.exp([value for _, value in found.top]).sum() == pytest.approx(1)
    assert found.logprob == found.top[2][1]


def test_a_stream_has_an_event_for_every_token(model):
    result = model.generate(PROMPT, max_new_tokens=6, logprobs=True, top_logprobs=2)
    events = list(model.stream(PROMPT, max_new_tokens=6, logprobs=True, top_logprobs=2).events())
    assert [event.token_id for event in events] == result.token_ids
    assert [event.logprobs for event in events] == result.logprobs
    assert "".join(event.text for event in events) == result.text
    assert isinstance(events[0], TokenEvent) and isinstance(events[0].logprobs, TokenLogprobs)
    stream = model.stream(PROMPT, max_new_tokens=6)
    first = next(stream)
    rest = list(stream.events())
    assert first + "".join(event.text for event in rest) == result.text
    assert {event.logprobs for event in rest} == {None}


def test_a_bias_bans_a_token_and_forces_another(model):
    free = model.generate(PROMPT, max_new_tokens=4).token_ids
    banned = model.generate(PROMPT, max_new_tokens=4, logit_bias={free[0]: float("-inf")}).token_ids
    assert free[0] not in banned
    assert model.generate(PROMPT, max_new_tokens=3, logit_bias=[(7, 100.0)]).token_ids == [7, 7, 7]


class Chooser:
    """The part of the generation loop that chooses the tokens of one row."""

    def __init__(self, prompt, **options):
        config = GenerationConfig(**options)
        self._row = Row(prompt, 100, frozenset(), config.sampling, None, rules=config.rules)

    def choose(self, *logits):
        self._row.advance(np.array(logits, np.float32))
        return self._row.tokens[-1]


def test_presence_and_frequency_apply_to_new_tokens_only():
    # OpenAI: logit − count · frequency − (count > 0) · presence; token 1 is in the prompt, which does not count.
    presence = Chooser([1, 1, 1], presence_penalty=0.5)
    assert [presence.choose(0, 1, 0.9) for _ in range(4)] == [1, 2, 1, 1]  # 1.0; 0.5 | 0.9; 0.5 | 0.4; the same
    frequency = Chooser([1, 1, 1], frequency_penalty=0.5)
    assert [frequency.choose(0, 1, 0.9) for _ in range(5)] == [1, 2, 1, 2, 0]
    both = Chooser([], presence_penalty=-0.5, frequency_penalty=0.3)  # 1.0; 1.2; 0.9; 0.6 | 0.9 + 0
    assert [both.choose(0, 1, 0.85) for _ in range(4)] == [1, 1, 1, 2]


def test_penalties_and_biases_are_those_of_a_plain_loop():
    rng = np.random.default_rng(3)
    options = {"presence_penalty": 0.4, "frequency_penalty": 0.7, "logit_bias": {2: 1.5, 5: -3.0}}
    config = GenerationConfig(**options)
    tokens = np.array([[9, 9, 1, 2, 2, 5], [9, 9, 3, 3, 3, 3]], np.int64)
    logits = rng.standard_normal((2, 10)).astype(np.float32)
    expected = logits.copy()
    for row, new in zip(expected, tokens[:, 2:], strict=True):
        for token in range(10):
            count = list(new).count(token)
            row[token] += dict(config.logit_bias).get(token, 0) - 0.7 * count - 0.4 * (count > 0)
    config.rules.apply(logits, tokens, prompt_length=2, max_length=99, eos=frozenset())
    np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_a_greedy_row_without_options_reads_plain_logits():
    seen = []
    row = Row([1], 4, frozenset(), GenerationConfig().sampling, None, rules=GenerationConfig().rules)
    row._sampler.choose = lambda logits: seen.append(logits) or 0
    logits = np.zeros(5, np.float32)
    row.advance(logits)
    assert seen[0] is logits and row.logprobs == []


@pytest.mark.parametrize("prompts", [PROMPT, [PROMPT, "The old bear walked to the river"]], ids=["one", "batch"])
def test_samples_are_solo_runs_with_the_following_seeds(model, prompts, monkeypatch):
    options = {"temperature": 0.9, "top_p": 0.95, "max_new_tokens": 10}
    runs = []
    prefill = StepRunner.prefill
    monkeypatch.setattr(
        StepRunner, "prefill", lambda self, row, *rest, **k: runs.append(row) or prefill(self, row, *rest)
    )
    found = model.generate(prompts, num_return_sequences=3, seed=5, **options)
    assert runs == ([0] if isinstance(prompts, str) else [0, 3])  # each prompt once
    for prompt, samples in [(prompts, found)] if isinstance(prompts, str) else zip(prompts, found, strict=True):
        solo = [model.generate(prompt, seed=5 + index, **options) for index in range(3)]
        assert [each.token_ids for each in samples] == [each.token_ids for each in solo]
        assert len({tuple(each.token_ids) for each in samples}) == 3


@pytest.mark.slow
def test_samples_work_with_a_dynamic_cache(llama_folder, tmp_path):
    from edgeformer.export import export_model

    model = load_causal_lm(export_model(llama_folder, tmp_path / "dynamic", ops="portable", cache="dynamic").path)
    options = {"temperature": 1.0, "max_new_tokens": 5}
    found = model.generate([[3, 4, 5], [6]], num_return_sequences=2, seed=1, **options)
    for prompt, samples in zip([[3, 4, 5], [6]], found, strict=True):
        assert [each.token_ids for each in samples] == [
            model.generate(prompt, seed=1 + index, **options).token_ids for index in range(2)
        ]


def test_ignore_eos_goes_on_after_an_end_token(model, monkeypatch):
    expected = model.generate("Once", max_new_tokens=10).token_ids
    tokens = replace(model.manifest.tokens, eos=(expected[4],))
    monkeypatch.setattr(model, "manifest", replace(model.manifest, tokens=tokens))
    assert model.generate("Once", max_new_tokens=10).finish_reason == "eos"
    result = model.generate("Once", max_new_tokens=10, ignore_eos=True)
    assert (result.token_ids, result.finish_reason) == (expected, "length")


def test_a_batch_with_options_equals_its_solo_runs(model):
    options = {
        "temperature": 0.9, "typical_p": 0.9, "xtc_probability": 0.5, "presence_penalty": 0.3, "dry_multiplier": 0.8,
        "logit_bias": {5: 2.0}, "seed": 3, "logprobs": True, "max_new_tokens": 12,
    }  # fmt: skip
    prompts = [PROMPT, "a", "12 + 30 = "]
    batch = model.generate(prompts, **options)
    for prompt, row in zip(prompts, batch, strict=True):
        solo = model.generate(prompt, **options)
        assert row.token_ids == solo.token_ids
        np.testing.assert_allclose(
            [each.logprob for each in row.logprobs], [each.logprob for each in solo.logprobs], atol=1e-4
        )


def test_chats_take_no_samples(model):
    with pytest.raises(RequestError, match="there is no option num_return_sequences"):
        model.stream("Hi", num_return_sequences=2)
