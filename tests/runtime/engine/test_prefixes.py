"""An engine keeps prefixes of earlier requests: later ones start behind them, and get the tokens they get alone."""

from dataclasses import replace

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.runtime import Engine, load
from edgeformer.runtime.engine.causal_service import CausalService
from edgeformer.runtime.prefixes.held_rows import HeldRows
from edgeformer.runtime.prefixes.prefix_cache import PrefixCache

WAIT = 60  # seconds, for what takes milliseconds
NEW = {"max_new_tokens": 8, "ignore_eos": True, "logprobs": True}


def prompts_of(seed=0, shared=30, lengths=(3, 9, 5, 9)):
    generator = np.random.default_rng(seed)
    beginning = generator.integers(3, 129, shared).tolist()
    return [beginning + generator.integers(3, 129, length).tolist() for length in lengths]


def run(engine, prompts, **options):
    """Run prompts one after the other."""
    return [engine.submit(prompt, **NEW | options).finish(WAIT) for prompt in prompts]


def logprobs(results):
    return np.array([[token.logprob for token in each.logprobs] for each in results])


@pytest.mark.parametrize("kind", ["llama", "windows", "recurrent"])
def test_prompts_that_begin_alike_get_what_they_get_alone(models, kind):
    model, prompts = models(kind), prompts_of()
    alone = [model.generate(prompt, **NEW) for prompt in prompts]
    turns = [[*prompt, *answer.token_ids, 5, 6] for prompt, answer in zip(prompts, alone, strict=True)]
    alone += [model.generate(turn, **NEW) for turn in turns]
    with Engine(model, max_rows=2) as engine:
        first = run(engine, prompts)
        second = run(engine, turns)
        statistics = engine.statistics()
    assert [each.token_ids for each in [*first, *second]] == [each.token_ids for each in alone]
    np.testing.assert_allclose(logprobs([*first, *second]), logprobs(alone), atol=1e-4)
    # States of fixed size are first kept where the second prompt leaves the first one.
    assert [each.cached_tokens for each in first] == ([0, 30, 30, 30] if kind == "llama" else [0, 0, 30, 30])
    assert [each.cached_tokens for each in second] == [
        len(turn) - 3 for turn in turns
    ]  # the answer's last token is new
    assert statistics.cached_tokens == sum(each.cached_tokens for each in [*first, *second])
    assert statistics.prompt_tokens == sum(map(len, [*prompts, *turns]))
    assert statistics.prefix_bytes > 0


@pytest.fixture
def too_long(monkeypatch):
    """A fault: rows that begin with a prefix are two tokens further than they are."""
    restore = PrefixCache.restore
    row_that_begins_like = CausalService._row_that_begins_like

    def restored_too_long(self, decoder, row, prompt, kind=""):
        prefix = restore(self, decoder, row, prompt, kind)
        if not prefix.length:
            return prefix
        decoder.lengths[row] += 2
        return replace(prefix, length=prefix.length + 2)

    def copied_too_long(self, request, running):
        place, length = row_that_begins_like(self, request, running)
        return place, length + 2 * (length > 0)

    def cause():
        monkeypatch.setattr(CausalService, "_row_that_begins_like", copied_too_long)
        monkeypatch.setattr(PrefixCache, "restore", restored_too_long)
        monkeypatch.setattr(HeldRows, "find", lambda *arguments: (-1, 0))

    return cause


@pytest.mark.parametrize("kind", ["llama", "windows", "recurrent"])
def test_a_wrong_length_of_the_prefix_is_seen(models, kind, too_long):
    """Negative control: were the row two tokens further than it is, the comparison above would fail."""
    model, prompts = models(kind), prompts_of()
    alone = [model.generate(prompt, **NEW) for prompt in prompts]
    too_long()
    with Engine(model, max_rows=2) as engine:
        found = run(engine, prompts)
    errors = np.abs(logprobs(found) - logprobs(alone)).max(1)
    assert errors[0] < 1e-4 and errors[3] > 1e-2
    if kind == "llama":
        assert [each.token_ids for each in found] != [each.token_ids for each in alone]


def widest_gap(found, alone):
    """Return the largest gap of log-probabilities, of texts up to their first different token, and of that to alone's.

    Rounding to int8 chooses between nearly equal tokens as the pieces in which a prompt is read have it.
    """
    gaps = []
    for ours, theirs in zip(found, alone, strict=True):
        for mine, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            if mine.token_id != other.token_id:
                gaps.append(other.logprob - dict(other.top).get(mine.token_id, -np.inf))
                break
            gaps.append(abs(mine.logprob - other.logprob))
    return max(gaps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"cache_precision": "int8"}, 0.05),
        ({"precision": "int4", "cache_precision": "fp16"}, 0.5),
        ({"precision": "fp16"}, 0.05),
    ],
    ids=["int8", "fp16 of int4", "fp16"],
)
def test_caches_of_other_types_are_kept_as_they_are(bundles, options, limit, too_long):
    model, prompts = load(bundles("llama", **options)), prompts_of()
    alone = [model.generate(prompt, **NEW, top_logprobs=3) for prompt in prompts]
    with Engine(model, max_rows=2) as engine:
        assert widest_gap(run(engine, prompts), alone) <= limit
        assert engine.statistics().cached_tokens == 90
    too_long()
    with Engine(model, max_rows=2) as engine:
        assert widest_gap(run(engine, prompts), alone) > 2 * limit


@pytest.mark.parametrize("kind", ["llama", "recurrent"])
def test_samples_of_one_prompt_read_it_once(models, kind):
    model, prompt = models(kind), prompts_of()[0]
    alone = [model.generate(prompt, **NEW, temperature=1.0, seed=seed).token_ids for seed in range(4)]
    with Engine(model, max_rows=4) as engine:
        streams = [engine.submit(prompt, **NEW, temperature=1.0, seed=seed) for seed in range(4)]
        found = [stream.finish(WAIT) for stream in streams]
    assert [each.token_ids for each in found] == alone
    left = 0 if kind == "recurrent" else 1  # with their states, the logits after the prompt are kept, too
    assert [each.cached_tokens for each in found] == [0, *[len(prompt) - left] * 3]


def test_prefixes_stay_within_their_bytes_and_can_be_left_out(models):
    model = models("llama")
    budget = 50 * 4 * 2 * model.manifest.cache.elements_per_token
    with Engine(model, max_rows=2, prefix_cache_bytes=budget) as engine:
        for seed in range(6):
            run(engine, prompts_of(seed))
            assert 0 < engine.statistics().prefix_bytes <= budget
    with Engine(model, max_rows=2, prefix_cache_bytes=0) as engine:
        run(engine, prompts_of())
        assert (engine.statistics().prefix_bytes, engine.statistics().cached_tokens) == (0, 0)
    with pytest.raises(RequestError, match="prefix_cache_bytes is -1"):
        Engine(model, prefix_cache_bytes=-1)


def test_what_a_cancelled_request_had_run_is_kept(models):
    model, prompt = models("llama"), prompts_of()[1]
    with Engine(model, max_rows=2) as engine:
        stream = engine.submit(prompt, max_new_tokens=900, ignore_eos=True)
        events = stream.events()
        begun = [next(events).token_id for _ in range(20)]
        stream.cancel()
        stream.finish(WAIT)
        [found] = run(engine, [[*prompt, *begun, 7]])
    assert found.cached_tokens == len(prompt) + 20
    assert found.token_ids == model.generate([*prompt, *begun, 7], **NEW).token_ids


def test_weights_that_round_by_the_run_keep_prefixes(bundles):
    """By default prefixes are kept of every bundle; without them, no text depends on what came before."""
    model, prompts = load(bundles("llama", precision="int8")), prompts_of()
    with Engine(model, max_rows=1) as engine:
        assert [each.cached_tokens for each in run(engine, prompts)] == [0, 30, 30, 30]
    alone = [model.generate(prompt, **NEW) for prompt in prompts]
    with Engine(model, max_rows=1, prefix_cache_bytes=0) as engine:
        found = run(engine, prompts)
        assert engine.statistics().prefix_bytes == 0
    assert [each.token_ids for each in found] == [each.token_ids for each in alone]
    # Not their bits: where a value lies between two integers, the last place of a float32 sum decides.
    assert [each.cached_tokens for each in found] == [0, 0, 0, 0]
