"""Drafts in an engine: a row gets what it gets without them, in fewer steps while it runs alone."""

from threading import Event

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.runtime import Engine, load
from edgeformer.runtime.engine import causal_service
from edgeformer.runtime.generation.speculation import DraftLength
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts

COPY = "The old bear walked to the river. The old bear walked to the river. The old bear walked"
DRAFTS = {"prompt_lookup_num_tokens": 8, "max_matching_ngram_size": 1}
WAIT = 60  # seconds, for what takes milliseconds
LISTS = {"type": "array", "items": {"type": "integer"}, "maxItems": 12}
OPTIONS = {
    "greedy": {},
    "sampled": {"temperature": 0.3, "seed": 2},
    "stop": {"stop": "river. The", "logprobs": True, "top_logprobs": 2},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.5, "temperature": 0.5, "seed": 4},
    "json": {"json_schema": LISTS},
}


@pytest.fixture
def always_drafting(monkeypatch):
    """Draft four tokens whenever there are any, so that no test depends on the time that runs take."""
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 4)


def close_logprobs(found, wanted):
    pairs = zip(found.logprobs or [], wanted.logprobs or [], strict=True)
    return all(abs(one.logprob - other.logprob) < 1e-4 for one, other in pairs)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_request_that_drafts_equals_its_solo_run(models, always_drafting, options):
    model = models("llama")
    prompt = "[12, 13, 12, 13, 12, 13]\n" if "json_schema" in options else COPY
    wanted = model.generate(prompt, max_new_tokens=48, **options)
    with Engine(model, max_rows=2) as engine:
        found = engine.submit(prompt, max_new_tokens=48, **options, **DRAFTS).finish(WAIT)
        again = engine.submit(prompt, max_new_tokens=48, **options).finish(WAIT)  # goes on behind what the row kept
        counts = engine.statistics()
    for each in (found, again):
        assert (each.text, each.token_ids, each.finish_reason) == (wanted.text, wanted.token_ids, wanted.finish_reason)
        assert close_logprobs(each, wanted)
    assert (found.speculation.drafted, found.speculation.accepted) == (counts.drafted_tokens, counts.accepted_tokens)
    assert found.speculation.drafted > 0
    assert (again.speculation is None) == ("json_schema" not in options)  # what a schema forces is drafted by itself


def test_drafts_that_come_true_save_steps(models, always_drafting):
    with Engine(models("llama"), max_rows=2) as engine:
        options = {"max_new_tokens": 64, "ignore_eos": True, **DRAFTS}
        found = engine.submit(COPY, logits_processors=[copying(models("llama"))], **options).finish(WAIT)
        counts = engine.statistics()
    assert counts.accepted_tokens == found.speculation.accepted > 30
    assert counts.steps == found.speculation.runs == 63 - counts.accepted_tokens


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 2}], ids=["greedy", "sampled"])
def test_a_draft_model_drafts_for_a_request_that_runs_alone(models, bundles, always_drafting, options):
    options |= {"max_new_tokens": 64, "ignore_eos": True}
    wanted = models("llama").generate(COPY, **options).token_ids
    model = load(bundles("llama"), draft=bundles("llama"))  # its own drafts come true, but for sampled tokens
    with Engine(model, max_rows=2) as engine:
        found = engine.submit(COPY, **options).finish(WAIT)
        counts = engine.statistics()
        plain = engine.submit(COPY, num_assistant_tokens=0, **options).finish(WAIT)
    assert found.token_ids == plain.token_ids == wanted
    assert found.speculation.drafted > 0 and plain.speculation is None
    assert counts.steps == 63 - counts.accepted_tokens
    if not options.get("temperature"):
        assert found.speculation.accepted == found.speculation.drafted > 40


def test_a_draft_model_follows_a_row_that_is_alone_now_and_then(models, bundles, always_drafting):
    options = {"max_new_tokens": 90, "ignore_eos": True}
    wanted = models("llama").generate(COPY, **options).token_ids
    model = load(bundles("llama"), draft=bundles("llama"))
    with Engine(model, max_rows=2) as engine:
        beside = []

        def visited(ids, logits):
            if len(ids) in (begun + 20, begun + 50):
                beside.append(engine.submit("a", max_new_tokens=9, ignore_eos=True))
            return logits

        begun = len(model.encode(COPY))
        found = engine.submit(COPY, logits_processors=[visited], **options).finish(WAIT)
        assert [len(stream.finish(WAIT).token_ids) for stream in beside] == [9, 9]
    assert found.token_ids == wanted
    assert found.speculation.accepted > 40


def test_a_draft_model_is_opened_only_for_lone_requests(bundles, monkeypatch):
    model = load(bundles("llama"), draft=bundles("llama"))
    made, new_decoder = [], model.draft.new_decoder
    monkeypatch.setattr(model.draft, "new_decoder", lambda *given: made.append(given) or new_decoder(*given))
    options = {"max_new_tokens": 8, "ignore_eos": True}
    with Engine(model, max_rows=2) as engine:
        streams = submitted(engine, [(COPY, options), (COPY, options)], lambda ids, logits: logits)
        for stream in streams:
            stream.finish(WAIT)
        assert not made
        engine.submit(COPY, **options).finish(WAIT)
    assert len(made) == 1


class Runs:
    """Counts what a draft model runs: `prompts` has the tokens of each prompt that it read, `steps` all other runs."""

    def __init__(self, draft, monkeypatch):
        self.decoders, self.prompts, self.steps = 0, [], 0
        new_decoder = draft.new_decoder

        def watched(*given):
            self.decoders += 1
            decoder = new_decoder(*given)
            prefill, one, several = decoder.prefill, decoder.decode_one_token, decoder.decode_tokens
            decoder.prefill = lambda row, tokens: self.prompts.append(len(tokens)) or prefill(row, tokens)
            decoder.decode_one_token = lambda *given: self._count() or one(*given)
            decoder.decode_tokens = lambda *given: self._count() or several(*given)
            return decoder

        monkeypatch.setattr(draft, "new_decoder", watched)

    def _count(self):
        self.steps += 1


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 2}], ids=["greedy", "sampled"])
def test_a_draft_model_runs_as_often_as_without_an_engine(bundles, always_drafting, monkeypatch, options):
    model = load(bundles("llama"), draft=bundles("llama"))
    runs, options = Runs(model.draft, monkeypatch), options | {"max_new_tokens": 64, "ignore_eos": True}
    wanted = model.generate(COPY, **options)
    alone, runs.steps = runs.steps, 0
    with Engine(model, max_rows=2) as engine:
        found = engine.submit(COPY, **options).finish(WAIT)
    assert found.token_ids == wanted.token_ids
    assert alone - 2 <= runs.steps <= alone


@pytest.mark.parametrize("kind", ["windows", "recurrent"])
def test_a_draft_model_drafts_over_caches_that_cannot_be_cut(bundles, always_drafting, kind):
    model, prompt = load(bundles(kind), draft=bundles(kind)), list(range(3, 33))
    wanted = load(bundles(kind)).generate(prompt, max_new_tokens=20, ignore_eos=True).token_ids
    with Engine(model, max_rows=2) as engine:
        found = engine.submit(prompt, max_new_tokens=20, ignore_eos=True).finish(WAIT)
    assert found.token_ids == wanted
    assert found.speculation.accepted == found.speculation.drafted > 10


def test_a_draft_model_reads_a_long_prompt_in_chunks(bundles, always_drafting, monkeypatch):
    model = load(bundles("llama"), draft=bundles("llama"))
    monkeypatch.setattr(causal_service, "PREFILL_CHUNK", 20)
    runs = Runs(model.draft, monkeypatch)
    prompt = model.encode(COPY * 3)
    with Engine(model, max_rows=2) as engine:
        engine.submit(prompt, max_new_tokens=1).finish(WAIT)
        engine.submit(prompt[1:], max_new_tokens=2, ignore_eos=True).finish(WAIT)
        assert runs.decoders == 0  # no draft would be of use
        found = engine.submit(prompt, max_new_tokens=40, ignore_eos=True).finish(WAIT)
    assert len(runs.prompts) >= len(prompt) // 20 - 1 and max(runs.prompts) <= 20
    assert found.speculation.accepted > 10
    assert found.token_ids == load(bundles("llama")).generate(prompt, max_new_tokens=40, ignore_eos=True).token_ids


def test_a_request_goes_on_where_its_draft_model_fails(bundles, always_drafting, monkeypatch):
    model = load(bundles("llama"), draft=bundles("llama"))

    def failing(*given):
        raise RequestError("the cache takes 3 GB")

    monkeypatch.setattr(model.draft, "new_decoder", failing)
    wanted = load(bundles("llama")).generate(COPY, max_new_tokens=20).token_ids
    with Engine(model, max_rows=2) as engine, pytest.warns(UserWarning, match="without drafts: the cache takes 3 GB"):
        assert engine.submit(COPY, max_new_tokens=20).finish(WAIT).token_ids == wanted


def test_the_cache_of_a_draft_model_is_part_of_the_memory(bundles):
    model = load(bundles("llama"), draft=bundles("llama"))
    ready, reached = Event(), Event()

    def hold(ids, logits):
        reached.set()
        assert ready.wait(WAIT)
        return logits

    with Engine(model, max_rows=2) as engine:
        one = engine._service.cache_bytes(40)
        stream = engine.submit(list(range(3, 23)), max_new_tokens=20, logits_processors=[hold])
        assert reached.wait(WAIT)
        assert engine.statistics().cache_bytes == 2 * one
        ready.set()
        stream.finish(WAIT)
    with Engine(model, max_rows=2, memory=one + one // 2) as engine:  # no room for drafts
        found = engine.submit(list(range(3, 23)), max_new_tokens=20, ignore_eos=True).finish(WAIT)
    assert found.speculation is None


def test_prompt_lookup_comes_before_the_draft_model(bundles, always_drafting, monkeypatch):
    model = load(bundles("llama"), draft=bundles("llama"))
    runs = Runs(model.draft, monkeypatch)
    with Engine(model, max_rows=2) as engine:
        found = engine.submit(COPY, max_new_tokens=40, ignore_eos=True, **DRAFTS).finish(WAIT)
    assert runs.decoders == 0 and found.speculation.drafted > 0


def copying(model):
    """Return a processor that makes the model repeat its prompt's sentence."""
    sentence = model.encode(" The old bear walked to the river.")[1:]

    def choose(ids, logits):
        logits = logits.copy()
        logits[sentence[len(ids) % len(sentence)]] = logits.max() + 1
        return logits

    return choose


@pytest.mark.parametrize("fault", ["accepts wrong drafts", "keeps wrong drafts"])
def test_a_verification_with_a_fault_is_seen(models, always_drafting, monkeypatch, fault):
    class Anything(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            return True

    model = models("llama")
    wanted = model.generate(COPY, max_new_tokens=48, ignore_eos=True).token_ids
    wrong = RowDrafts.draft
    with Engine(model, max_rows=2) as engine:
        if fault == "accepts wrong drafts":
            monkeypatch.setattr(RowDrafts, "draft", lambda self: [Anything(token) for token in wrong(self)])
        else:
            monkeypatch.setattr(engine._service.decoder, "cut", lambda row, length: None)
        found = engine.submit(COPY, max_new_tokens=48, ignore_eos=True, **DRAFTS).finish(WAIT)
    assert found.speculation.drafted > 0
    assert found.token_ids != wanted


def submitted(engine, requests, before):
    """Submit requests, of which none gets its second token before all are there; before: a processor of all."""
    ready = Event()

    def processor(ids, logits):
        assert ready.wait(WAIT)
        return before(ids, logits)

    streams = [engine.submit(prompt, logits_processors=[processor], **options) for prompt, options in requests]
    ready.set()
    return streams


def test_rows_that_run_together_draft_nothing(models, always_drafting, monkeypatch):
    model, prompts = models("llama"), [COPY, "Once upon a time", COPY + " to"]
    options = [{"max_new_tokens": 24 + 20 * place, "ignore_eos": True} for place in range(3)]
    wanted = [model.generate(prompt, **each) for prompt, each in zip(prompts, options, strict=True)]
    requests = [(prompt, each | DRAFTS) for prompt, each in zip(prompts, options, strict=True)]
    steps = []  # rows of each step, or "draft"
    with Engine(model, max_rows=3) as engine:
        decoder = engine._service.decoder
        rows, several = decoder.decode_rows, decoder.decode_tokens
        monkeypatch.setattr(decoder, "decode_rows", lambda *given: steps.append(len(given[1])) or rows(*given))
        monkeypatch.setattr(decoder, "decode_tokens", lambda *given: steps.append("draft") or several(*given))
        found = [stream.finish(WAIT) for stream in submitted(engine, requests, lambda ids, logits: logits)]
    assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
    assert steps.count(3) >= 20 and "draft" in steps
    assert set(steps[steps.index("draft") :]) <= {"draft", 1}, "only the last one runs alone"


def test_a_cancelled_request_frees_its_row(models, always_drafting):
    model = models("llama")
    begun = len(model.encode(COPY))
    with Engine(model, max_rows=1) as engine:
        streams = []

        def cancel(ids, logits):
            if len(ids) == begun + 20:
                streams[0].cancel()
            return logits

        streams += submitted(engine, [(COPY, {"max_new_tokens": 150, "ignore_eos": True, **DRAFTS})], cancel)
        assert streams[0].finish(WAIT).finish_reason == "cancelled"
        found = engine.submit(COPY, max_new_tokens=48, **DRAFTS).finish(WAIT)
        assert engine.statistics().running == 0
    assert found.token_ids == model.generate(COPY, max_new_tokens=48).token_ids


@pytest.mark.parametrize("kind", ["windows", "recurrent"])
def test_rows_that_cannot_be_cut_are_put_back(models, always_drafting, kind):
    model, prompt = models(kind), [5, 6, 7, 5, 6, 7, 5, 6, 7, 5]
    wanted = model.generate(prompt, max_new_tokens=60, ignore_eos=True)
    with Engine(model, max_rows=2) as engine:
        found = engine.submit(prompt, max_new_tokens=60, ignore_eos=True, **DRAFTS).finish(WAIT)
    assert found.token_ids == wanted.token_ids
    assert found.speculation.drafted > found.speculation.accepted > 0


def visited(model, prompt):
    """The log-probabilities of a row that drafts, and that has another one beside it now and then, and those alone."""
    options = {"max_new_tokens": 60, "ignore_eos": True, "temperature": 0.3, "seed": 1, "logprobs": True}
    wanted = model.generate(prompt, **options)
    with Engine(model, max_rows=2) as engine:
        beside = []

        def visit(ids, logits):
            if (len(ids) - len(prompt)) % 5 == 4:
                beside.append(engine.submit([9, 8], max_new_tokens=2, ignore_eos=True))
            return logits

        found = engine.submit(prompt, logits_processors=[visit], **options, **DRAFTS).finish(WAIT)
        assert len(beside) > 4 and all(len(stream.finish(WAIT).token_ids) == 2 for stream in beside)
    assert found.speculation.drafted > found.speculation.accepted
    return [[each.logprob for each in result.logprobs] for result in (found, wanted)]


@pytest.mark.parametrize("kind", ["windows", "recurrent"])
def test_a_row_runs_its_pending_tokens_before_it_joins_others(models, always_drafting, kind, monkeypatch):
    catch_up, pending = RowDrafts.catch_up, []
    monkeypatch.setattr(
        RowDrafts, "catch_up", lambda self, *row: pending.append(len(self.pending)) or catch_up(self, *row)
    )
    found, wanted = visited(models(kind), [5, 6, 7, 5, 6, 7, 5, 6, 7, 5])
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert max(pending) > 0
    # The negative control: were they left out, the row would go on behind another text.
    monkeypatch.setattr(RowDrafts, "catch_up", lambda self, decoder, place: self.pending.clear())
    found, wanted = visited(models(kind), [5, 6, 7, 5, 6, 7, 5, 6, 7, 5])
    assert not np.allclose(found, wanted, atol=1e-4)
