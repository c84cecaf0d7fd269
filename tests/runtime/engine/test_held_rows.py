"""A row keeps what it holds when its request ends, and a request that goes on behind it takes it without a copy."""

import numpy as np
import pytest

from edgeformer.runtime import Engine
from edgeformer.runtime.prefixes.held_rows import HeldRow, HeldRows
from edgeformer.runtime.steps.runner import StepRunner

WAIT = 120  # seconds, for what takes milliseconds
NEW = {"max_new_tokens": 9, "ignore_eos": True, "logprobs": True}
KINDS = ("llama", "windows", "recurrent")


def prompt_of(seed, length=20):
    return np.random.default_rng(seed).integers(3, 129, length).tolist()


def next_turn(prompt, answer, seed=7):
    return [*prompt, *answer.token_ids, *prompt_of(seed, 4)]


def turns_of(model, seed, count):
    """Return the prompts of a conversation and what the model answers to each by itself."""
    prompts, answers = [prompt_of(seed)], []
    for turn in range(count):
        answers.append(model.generate(prompts[-1], **NEW))
        prompts.append(next_turn(prompts[-1], answers[-1], seed + turn))
    return prompts[:count], answers


def logprobs(result):
    return [token.logprob for token in result.logprobs]


@pytest.fixture
def copies(monkeypatch):
    """Count what is copied into rows: kept prefixes, and other rows."""
    counts = {"load_row": 0, "move": 0, "copy": 0}
    for name in counts:
        plain = getattr(StepRunner, name)

        def counted(self, *arguments, name=name, plain=plain):
            counts[name] += 1
            return plain(self, *arguments)

        monkeypatch.setattr(StepRunner, name, counted)
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_in_turns_copy_nothing(models, kind, copies):
    model = models(kind)
    told = [turns_of(model, seed, 3) for seed in (10, 20, 30)]
    with Engine(model, max_rows=3) as engine:
        for turn in range(3):
            for prompts, answers in told:
                found = engine.submit(prompts[turn], **NEW).finish(WAIT)
                assert found.token_ids == answers[turn].token_ids
                np.testing.assert_allclose(logprobs(found), logprobs(answers[turn]), atol=1e-4)
                # The last token of an answer is chosen, but not run.
                assert found.cached_tokens == (len(prompts[turn - 1]) + NEW["max_new_tokens"] - 1 if turn else 0)
    assert not any(copies.values())


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_at_once_equal_their_solo_runs(models, kind):
    model = models(kind)
    told = [turns_of(model, seed, 3) for seed in range(100, 700, 100)]
    with Engine(model, max_rows=4) as engine:
        for turn in range(3):
            streams = [
                engine.submit(prompts[turn], **NEW | {"max_new_tokens": 3 + (5 * index + turn) % 7})
                for index, (prompts, _) in enumerate(told)
            ]
            for stream, (_, answers) in zip(streams, told, strict=True):
                found = stream.finish(WAIT)
                assert found.token_ids == answers[turn].token_ids[: len(found.token_ids)]
                assert turn == 0 or found.cached_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_length_of_a_held_row_is_seen(models, kind, monkeypatch):
    """Negative control: were the row two tokens further than it is, the comparisons above would fail."""
    model = models(kind)
    prompts, answers = turns_of(model, 10, 2)
    find = HeldRows.find

    def too_long(*arguments):
        place, length = find(*arguments)
        return place, length + 2 * (length > 0)

    monkeypatch.setattr(HeldRows, "find", too_long)
    with Engine(model, max_rows=2) as engine:
        found = [engine.submit(prompt, **NEW).finish(WAIT) for prompt in prompts]
    errors = [np.abs(np.subtract(logprobs(a), logprobs(b))).max() for a, b in zip(found, answers, strict=True)]
    assert errors[0] < 1e-4 and errors[1] > 1e-2


def test_a_beginning_is_copied_from_the_row_of_a_running_request(models, copies):
    model, beginning = models("llama"), prompt_of(1, 30)
    prompts = [[*beginning, *prompt_of(seed, 5)] for seed in (2, 3, 4)]
    alone = [model.generate(prompt, **NEW | {"max_new_tokens": 30}) for prompt in prompts]
    with Engine(model, max_rows=4) as engine:
        streams = [engine.submit(prompt, **NEW | {"max_new_tokens": 30}) for prompt in prompts]
        found = [stream.finish(WAIT) for stream in streams]
        statistics = engine.statistics()
    assert [each.token_ids for each in found] == [each.token_ids for each in alone]
    assert [each.cached_tokens for each in found] == [0, 30, 30]
    assert copies == {"load_row": 0, "move": 0, "copy": 2}
    assert statistics.prefix_bytes == 0, "a text is in memory once"


def test_the_text_of_a_row_that_is_needed_is_kept_elsewhere(models, copies):
    model, prompt, other = models("llama"), prompt_of(1, 40), prompt_of(2, 40)
    with Engine(model, max_rows=1) as engine:
        first, _ = (engine.submit(each, **NEW).finish(WAIT) for each in (prompt, other))
        bytes_kept = engine.statistics().prefix_bytes
        second = engine.submit(next_turn(prompt, first), **NEW).finish(WAIT)
    assert bytes_kept > 0
    assert second.cached_tokens == len(prompt) + NEW["max_new_tokens"] - 1
    assert second.token_ids == model.generate(next_turn(prompt, first), **NEW).token_ids
    assert copies == {"load_row": 1, "move": 0, "copy": 0}


def test_an_answer_that_is_asked_again_takes_its_row_back(models, copies):
    """A regenerated answer leaves the old one behind the prompt, as far as a cache can be cut."""
    model = models("llama")
    prompt = prompt_of(1, 40)
    with Engine(model, max_rows=2) as engine:
        first = engine.submit(prompt, **NEW).finish(WAIT)
        again = engine.submit(prompt, **NEW | {"temperature": 1.0, "seed": 4}).finish(WAIT)
    assert (first.cached_tokens, again.cached_tokens) == (0, 39)
    assert again.token_ids == model.generate(prompt, **NEW | {"temperature": 1.0, "seed": 4}).token_ids
    assert not any(copies.values())


def test_rows_are_held_within_the_memory_of_the_engine(models):
    """Requests and held rows together stay within it; the rows that were held first go first."""
    model = models("llama")
    row = 40 + NEW["max_new_tokens"]
    per_token = model.new_decoder(1, 1).cache.bytes
    with Engine(model, max_rows=4, memory=(5 * row // 2) * per_token) as engine:
        seen = []
        for seed in range(5):
            stream = engine.submit(prompt_of(seed, 40), **NEW, logits_processors=[watch(engine, seen)])
            stream.finish(WAIT)
        engine.submit([*prompt_of(5, 2 * row - 10)], max_new_tokens=10).finish(WAIT)
        statistics = engine.statistics()
    assert all(running + held <= statistics.memory for running, held in seen)
    assert max(held for _, held in seen) == (row - 1) * per_token, "one row is held beside a running one"
    assert (statistics.held_bytes, statistics.cache_bytes) == ((2 * row - 1) * per_token, 0)


def watch(engine, seen):
    def processor(ids, logits):
        statistics = engine.statistics()
        seen.append((statistics.cache_bytes, statistics.held_bytes))
        return logits

    return processor


def test_a_longer_texts_memory_counts_until_it_is_given_back(models):
    """A row that is cut keeps the pages of what it had; the request that takes it is charged for them."""
    model = models("llama")
    per_token = model.new_decoder(1, 1).cache.bytes
    prompt, seen = prompt_of(3, 60), []
    with Engine(model, max_rows=2) as engine:
        first = engine.submit(prompt, max_new_tokens=40, ignore_eos=True).finish(WAIT)
        engine.submit([*prompt, 5], max_new_tokens=2, logits_processors=[watch(engine, seen)]).finish(WAIT)
        held = engine.statistics().held_bytes
    assert len(first.token_ids) == 40
    assert [running for running, _ in seen] == [99 * per_token] * 2
    assert held == 99 * per_token


class WithoutBlocks:
    """A decode graph whose prompts may be divided at any token."""

    def prefix_end(self, tokens, length):
        return length


class Decoder:
    def __init__(self, cuts):
        self.cuts, self.graph = cuts, WithoutBlocks()

    def can_cut(self, length):
        return self.cuts


def find(rows, prompt, places=range(4), kind="", most=100, cuts=True):
    return rows.find(Decoder(cuts), places, prompt, kind, most)


def test_which_row_a_prompt_takes():
    rows, text = HeldRows(), list(range(100))
    rows.hold(0, HeldRow(np.arange(40), "", 40))
    rows.hold(2, HeldRow(np.arange(60), "", 60))
    rows.hold(3, HeldRow(np.arange(80), "poet", 80))
    assert rows.bytes == 180
    assert find(rows, text) == (2, 60)
    assert find(rows, text, kind="poet") == (3, 80)
    assert find(rows, text, kind="critic") == (-1, 0)
    assert find(rows, text, places=[0, 1]) == (0, 40)
    assert find(rows, text, most=50) == (0, 40), "the memory has no room for a longer one"
    assert find(rows, text[:50]) == (2, 49), "one token of the prompt is left to run"
    assert find(rows, text[:50], cuts=False) == (0, 40), "this cache cannot be cut"
    assert find(rows, text[:25] + [0] * 9) == (0, 25)
    assert find(rows, text[:20] + [0] * 9) == (-1, 0), "most of the row would be lost"
    assert find(rows, text[:15]) == (-1, 0), "a few tokens are not worth a row"
    assert rows.least_useful([3, 0]) == 0 and rows.least_useful([3, 1, 0]) == 1
    released = []
    rows.release(140, lambda place, row: released.append((place, row.bytes)))
    assert (released, rows.bytes) == ([(0, 40)], 140)
    rows.forget(2)
    assert (find(rows, text), rows.bytes) == ((-1, 0), 80)
