"""Rows of an engine that draft in one step where our kernels attend: each gets what it gets without drafts."""

from threading import Event

import numpy as np
import pytest

from edgeformer.export import export_model
from edgeformer.runtime import Engine, load
from edgeformer.runtime.generation.speculation import MultiTokenPrediction, PromptLookup
from edgeformer.runtime.generation.speculation.draft_length import RunCosts

SENTENCE = "The old bear walked to the river. "
COPIES = [SENTENCE * 2 + "The old", "A dog. " + SENTENCE + "The", "Tom saw it. " * 3 + "Tom", "Once upon a time, a cat"]
LOOKUP = {"prompt_lookup_num_tokens": 8, "max_matching_ngram_size": 1}
SIZES = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 96, "bos_token_id": 1, "eos_token_id": 130,
}  # fmt: skip
WAIT = 60  # seconds, for what takes milliseconds


@pytest.fixture(autouse=True)
def kernels_are_installed(installed, library):
    installed(library)


@pytest.fixture(autouse=True)
def always_three(monkeypatch):
    """Draft up to three tokens whenever a row may, so that no test depends on the time that runs take."""
    monkeypatch.setattr(RunCosts, "best_length", lambda self, rows, pending=0: min(3, max(most for _, most in rows)))


class Together:
    """The runs of several tokens of several rows that an engine makes: how many rows each has."""

    def __init__(self, engine, monkeypatch):
        self.rows = []
        decoder = engine._service.decoder
        run = decoder.decode_together
        monkeypatch.setattr(
            decoder, "decode_together", lambda first, tokens: self.rows.append(len(tokens)) or run(first, tokens)
        )


def begin_together(engine, requests, before=None):
    """Submit requests (prompt, options), of which none gets its second token before all are there."""
    ready = Event()

    def processor(ids, logits):
        assert ready.wait(WAIT)
        return logits if before is None else before(ids, logits)

    streams = [engine.submit(prompt, logits_processors=[processor], **options) for prompt, options in requests]
    ready.set()
    return streams


@pytest.mark.parametrize("cache", [None, "int8"])
def test_a_run_of_rows_computes_what_a_row_computes_alone(tiny_llama_bundle, cache):
    decoder = load(tiny_llama_bundle, threads=1, cache_precision=cache).new_decoder(4, 64)
    decoder.graph.appends_to_rows = True
    tokens = np.random.default_rng(0).integers(3, 900, (3, 5))
    for row, length in enumerate((7, 20, 33, 12)):
        decoder.prefill(row, list(range(3 + row, 3 + row + length)))
    lengths = decoder.lengths.copy()
    alone = [decoder.decode_tokens(row, tokens[row - 1].tolist()).copy() for row in (1, 2, 3)]
    for row in (1, 2, 3):
        decoder.cut(row, int(lengths[row]))
    found = decoder.decode_together(1, tokens).copy()
    assert (decoder.lengths - lengths).tolist() == [0, 5, 5, 5]
    np.testing.assert_array_equal(found, alone)
    decoder.lengths[:] = [7, 20, 30, 12]  # the negative control: a row of another length
    assert np.abs(decoder.decode_together(1, tokens) - found).max() > 1e-3 * np.abs(found).max()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 2}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["lookup", "model", "mtp"])
@pytest.mark.parametrize("rows", [2, 4])
def test_rows_that_draft_write_what_each_writes_alone(tiny_llama_mtp_bundle, monkeypatch, drafter, options, rows):
    """They end one after the other, another joins behind the first that ends, and log-probabilities are the same."""
    draft = {"lookup": None, "model": tiny_llama_mtp_bundle, "mtp": "mtp"}[drafter]
    model, plain = load(tiny_llama_mtp_bundle, threads=1, draft=draft), load(tiny_llama_mtp_bundle, threads=1)
    given = [options | {"max_new_tokens": 30 + 12 * row, "ignore_eos": True, "logprobs": True} for row in range(4)]
    wanted = [plain.generate(prompt, **each) for prompt, each in zip(COPIES, given, strict=True)]
    asked = LOOKUP if drafter == "lookup" else {}
    with Engine(model, max_rows=rows) as engine:
        together = Together(engine, monkeypatch)
        requests = [(prompt, each | asked) for prompt, each in zip(COPIES, given, strict=True)]
        found = [stream.finish(WAIT) for stream in begin_together(engine, requests)]
        counts = engine.statistics()
    for one, other in zip(found, wanted, strict=True):
        assert one.token_ids == other.token_ids
        logprobs = ([each.logprob for each in result.logprobs] for result in (one, other))
        np.testing.assert_allclose(*logprobs, atol=1e-4)
    assert len(together.rows) > 10 and max(together.rows) == rows
    assert counts.accepted_tokens == sum(each.speculation.accepted for each in found) > 10
    assert counts.generated_tokens == sum(len(each.token_ids) for each in found)


def test_right_drafts_of_rows_save_steps(tiny_llama_bundle, monkeypatch):
    """Rows that the drafter knows by heart take a quarter of the steps."""
    plain = load(tiny_llama_bundle, threads=1)
    options = {"max_new_tokens": 41, "ignore_eos": True}
    texts = [[*plain.encode(prompt), *plain.generate(prompt, **options).token_ids] for prompt in COPIES[:2]]

    def known(self, count):
        [text] = [text for text in texts if text[: len(self._tokens)] == self._tokens]
        return text[len(self._tokens) :][:count]

    monkeypatch.setattr(PromptLookup, "draft", known)
    with Engine(plain, max_rows=2) as engine:
        requests = [(prompt, options | LOOKUP) for prompt in COPIES[:2]]
        found = [stream.finish(WAIT) for stream in begin_together(engine, requests)]
        steps = engine.statistics().steps
    assert [each.token_ids for each in found] == [text[-41:] for text in texts]
    assert steps <= 14


@pytest.mark.parametrize("fault", ["keeps wrong drafts", "keeps padding"])
def test_what_is_not_taken_back_is_seen(tiny_llama_bundle, monkeypatch, fault):
    model, options = load(tiny_llama_bundle, threads=1), {"max_new_tokens": 40, "ignore_eos": True}
    wanted = [model.generate(prompt, **options).token_ids for prompt in COPIES[:2]]
    draft = PromptLookup.draft
    if fault == "keeps padding":  # one row drafts nothing
        begun = model.encode(COPIES[1])
        monkeypatch.setattr(
            PromptLookup, "draft", lambda self, count: [] if self._tokens[: len(begun)] == begun else draft(self, count)
        )
    with Engine(model, max_rows=2) as engine:
        decoder, together = engine._service.decoder, Together(engine, monkeypatch)
        cut = decoder.cut
        monkeypatch.setattr(decoder, "cut", lambda row, length: None if decoder.lengths[row] else cut(row, length))
        requests = [(prompt, options | LOOKUP) for prompt in COPIES[:2]]
        found = [stream.finish(WAIT).token_ids for stream in begin_together(engine, requests)]
    assert together.rows and found[1] != wanted[1]


OTHERS = {
    "asks for nothing": {},
    "has a schema, for which nobody asks for drafts": {"json_schema": {"type": "array", "items": {"type": "integer"}}},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_row_that_asks_for_no_drafts_gets_steps(tiny_llama_bundle, monkeypatch, other):
    model = load(tiny_llama_bundle, threads=1)
    options = {"max_new_tokens": 30, "ignore_eos": not other}
    with Engine(model, max_rows=2) as engine:
        together = Together(engine, monkeypatch)
        requests = [(COPIES[0], {"max_new_tokens": 30, "ignore_eos": True, **LOOKUP}), (COPIES[1], options | other)]
        for stream in begin_together(engine, requests):
            stream.finish(WAIT)
    assert not together.rows


def test_five_rows_draft_nothing(tiny_llama_bundle, monkeypatch):
    with Engine(load(tiny_llama_bundle, threads=1), max_rows=5) as engine:
        together = Together(engine, monkeypatch)
        requests = [(prompt, {"max_new_tokens": 20, "ignore_eos": True, **LOOKUP}) for prompt in [*COPIES, COPIES[0]]]
        for stream in begin_together(engine, requests):
            stream.finish(WAIT)
    assert 5 not in together.rows


@pytest.mark.parametrize("family", ["gemma2", "qwen3_5_text"])
def test_rows_that_cannot_be_cut_do_not_draft_together(make_model, tmp_path, monkeypatch, family):
    """Beyond a window, and with states of fixed size; pending tokens of a row alone are run when another one joins."""
    sizes = {"sliding_window": 16} if family == "gemma2" else {
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    }  # fmt: skip
    model = load(export_model(make_model(family, 3, **SIZES, **sizes), tmp_path / family, verify=None).path, threads=1)
    prompts = [[5, 6, 7, 5, 6, 7, 5], [9, 8, 9, 8, 9]]
    options = {"max_new_tokens": 40, "ignore_eos": True}
    wanted = [model.generate(prompt, **options).token_ids for prompt in prompts]
    with Engine(model, max_rows=2) as engine:
        lengths, decoder = [], engine._service.decoder
        run = decoder.decode_together
        monkeypatch.setattr(
            decoder,
            "decode_together",
            lambda first, tokens: lengths.append(int(decoder.lengths.max()) + tokens.shape[1]) or run(first, tokens),
        )
        beside = []

        def visited(ids, logits):
            if len(ids) in (20, 30):
                beside.append(engine.submit(prompts[1], **options | {"max_new_tokens": 4}, **LOOKUP))
            return logits

        streams = begin_together(engine, [(prompt, options | LOOKUP) for prompt in prompts])
        found = [stream.finish(WAIT).token_ids for stream in streams]
        again = engine.submit(prompts[0], logits_processors=[visited], **options, **LOOKUP).finish(WAIT).token_ids
        assert [stream.finish(WAIT).token_ids for stream in beside] == [wanted[1][:4]] * 2
    assert found == wanted and again == wanted[0]
    assert max(lengths, default=0) <= (16 if family == "gemma2" else 0)


def test_a_row_is_cancelled_beside_others(tiny_llama_bundle):
    model, options = load(tiny_llama_bundle, threads=1), {"max_new_tokens": 60, "ignore_eos": True}
    wanted = [model.generate(prompt, **options).token_ids for prompt in COPIES[:3]]
    begun, streams = len(model.encode(COPIES[1])), []

    def cancel(ids, logits):
        if ids[:begun].tolist() == model.encode(COPIES[1]) and len(ids) == begun + 20:
            streams[1].cancel()
        return logits

    with Engine(model, max_rows=3) as engine:
        streams += begin_together(engine, [(prompt, options | LOOKUP) for prompt in COPIES[:3]], cancel)
        found = [stream.finish(WAIT) for stream in streams]
    assert [each.finish_reason for each in found] == ["length", "cancelled", "length"]
    assert [found[row].token_ids for row in (0, 2)] == [wanted[0], wanted[2]]
    assert found[1].token_ids == wanted[1][: len(found[1].token_ids)]


def test_rows_go_on_where_the_drafter_of_one_fails(tiny_llama_mtp_bundle, monkeypatch):
    model = load(tiny_llama_mtp_bundle, threads=1, draft="mtp")
    options = {"max_new_tokens": 40, "ignore_eos": True}
    wanted = [model.generate(prompt, num_assistant_tokens=0, **options).token_ids for prompt in COPIES[:2]]
    follow, begun = MultiTokenPrediction._follow, model.encode(COPIES[0])

    def failing(self, text):
        if text[: len(begun)] == begun:
            raise MemoryError("no memory")
        return follow(self, text)

    monkeypatch.setattr(MultiTokenPrediction, "_follow", failing)
    with Engine(model, max_rows=2) as engine:
        together = Together(engine, monkeypatch)
        with pytest.warns(UserWarning, match="without drafts: no memory"):
            found = [stream.finish(WAIT) for stream in begin_together(engine, [(p, options) for p in COPIES[:2]])]
    assert [each.token_ids for each in found] == wanted
    assert found[0].speculation.drafted == 0 < found[1].speculation.accepted and together.rows


def test_a_run_that_fails_ends_its_requests(tiny_llama_bundle, monkeypatch):
    model, options = load(tiny_llama_bundle, threads=1), {"max_new_tokens": 40, "ignore_eos": True}
    with Engine(model, max_rows=2) as engine:
        decoder = engine._service.decoder
        with monkeypatch.context() as patch:
            patch.setattr(decoder, "decode_together", lambda first, tokens: 1 // 0)
            for stream in begin_together(engine, [(prompt, options | LOOKUP) for prompt in COPIES[:2]]):
                with pytest.raises(ZeroDivisionError):
                    stream.finish(WAIT)
        found = engine.submit(COPIES[0], **options).finish(WAIT)
    assert found.token_ids == model.generate(COPIES[0], **options).token_ids


def test_rows_with_prefixes_fill_their_memory(tiny_llama_mtp_bundle, monkeypatch):
    """Rows begin behind what others left, and end where the cache does: padding has no room there."""
    model = load(tiny_llama_mtp_bundle, threads=1, draft="mtp")
    options = {"max_new_tokens": 40, "ignore_eos": True, "num_assistant_tokens": 0}
    begun, drafting = model.encode(SENTENCE * 4), {"max_new_tokens": 40, "ignore_eos": True}
    wanted = [model.generate(prompt, **options).token_ids for prompt in (begun, begun[:-2])]
    with Engine(model, max_rows=2) as engine:
        monkeypatch.setattr(engine._service.decoder.cache, "capacity", len(begun) + 40)
        together = Together(engine, monkeypatch)
        engine.submit(begun, max_new_tokens=2).finish(WAIT)
        found = [stream.finish(WAIT) for stream in begin_together(engine, [(begun, drafting), (begun[:-2], drafting)])]
    assert [each.token_ids for each in found] == wanted
    assert all(each.cached_tokens >= 16 for each in found) and together.rows
