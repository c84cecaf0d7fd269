"""Rows that are finished are left out of a batch's steps: the others go on as they would alone, over every cache."""

import numpy as np
import pytest
from small_models import KINDS, T5, TEXT

from edgeformer.export import export_model
from edgeformer.runtime import load
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.generation.generate import LEAVE_OUT_AT, run_rows
from edgeformer.runtime.generation.scheduling import Beginnings, ScheduledRequest, Scheduler
from edgeformer.runtime.steps.runner import StepRunner

NEW_TOKENS = (3, 14, 9, 1, 20, 5, 12, 2)
PROMPTS = [np.random.default_rng(row).integers(2, 130, 2 + 3 * (row % 4)).tolist() for row in range(len(NEW_TOKENS))]


@pytest.fixture(scope="module", params=KINDS)
def model(make_model, tmp_path_factory, request):
    family, sizes, options = KINDS[request.param]
    folder = make_model(family, 3, **TEXT, **sizes)
    return load(export_model(folder, tmp_path_factory.mktemp(request.param) / "b", verify=None, **options).path)


@pytest.fixture(scope="module")
def translator(make_model, tmp_path_factory):
    folder = make_model("t5", 3, auto="AutoModelForSeq2SeqLM", **T5)
    return load(export_model(folder, tmp_path_factory.mktemp("t5") / "b", verify=None, context_length=96).path)


def together(model):
    """The tokens of rows that end at different steps, and the number of rows that the last step had."""
    rows = [
        model.new_row(prompt, max_new_tokens=new, ignore_eos=True)
        for prompt, new in zip(PROMPTS, NEW_TOKENS, strict=True)
    ]
    decoder = model.new_decoder(len(rows), max(map(len, PROMPTS)) + max(NEW_TOKENS))
    step, sizes = decoder.decode_rows, []
    decoder.decode_rows = lambda first, tokens, *rest: sizes.append(len(tokens)) or step(first, tokens, *rest)
    run_rows(decoder, rows)
    return [row.tokens for row in rows], sizes[-1]


def alone(model):
    return [
        model.generate(prompt, max_new_tokens=new, ignore_eos=True).token_ids
        for prompt, new in zip(PROMPTS, NEW_TOKENS, strict=True)
    ]


def test_rows_go_on_as_alone(model):
    found, kept = together(model)
    assert found == alone(model)
    assert kept == (1 if model.manifest.plan.cache_form != "dynamic" else len(PROMPTS))


@pytest.mark.parametrize("model", [kind for kind in KINDS if kind != "dynamic"], indirect=True)
def test_rows_that_stay_in_place_would_be_noticed(model, monkeypatch):
    monkeypatch.setattr(StaticCache, "move_row", lambda *_: None)
    assert together(model)[0] != alone(model)


def left_after(model, rows, ended):
    """Which of some rows each place has once some have ended, by the lengths of the cache."""
    decoder = model.new_decoder(rows, 16)
    decoder.lengths[:] = range(rows)
    scheduler = Scheduler(Beginnings(decoder), rows, leave_out_at=LEAVE_OUT_AT)
    scheduler._running = [ScheduledRequest(model.new_row([2], max_new_tokens=2), place=row) for row in range(rows)]
    for row in ended:
        scheduler._running[row].ended = True
    scheduler._close_gaps()
    return {request.place: int(decoder.lengths[request.place]) for request in scheduler._running}


@pytest.mark.parametrize("model", ["standard"], indirect=True)
def test_last_rows_fill_the_gaps(model):
    assert left_after(model, 8, ended=[1, 3, 4, 6]) == {0: 0, 1: 7, 2: 2, 3: 5}
    assert left_after(model, 4, ended=[0]) == {1: 1, 2: 2, 3: 3}, "rows behind the first ones stay"
    assert left_after(model, 8, ended=[0, 3, 4, 7]) == {1: 1, 2: 2, 3: 5, 4: 6}
    assert left_after(model, 8, ended=[5]) == {row: row for row in range(8)}, "more than three quarters go on"


@pytest.mark.parametrize("model", ["standard"], indirect=True)
def test_a_gap_that_another_row_fills_would_be_noticed(model, monkeypatch):
    move = Beginnings.move

    def wrong(self, request, place):
        move(self, request, place)
        self.decoder.move(place - 1 if place else 1, place)

    monkeypatch.setattr(Beginnings, "move", wrong)
    assert together(model)[0] != alone(model)


def of_sources(model):
    """The tokens of sources of which two end at once, because their first token is an end."""
    sources = [[20 + row, 7, 9 + 5 * row, 1] for row in (4, 0, 1, 2, 3, 5, 6, 4)]
    single = [model.generate(source, max_new_tokens=12, ignore_eos=True).token_ids for source in sources]
    eos = frozenset(tokens[2] for tokens in single[1:6:2])  # so that most rows between the first and the last end early
    together, kept = [], []
    step = StepRunner.decode_rows

    def watched(self, first, tokens, *rest):
        kept.append(len(tokens))
        return step(self, first, tokens, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeformer.runtime.generation.make_row.end_tokens", lambda config, manifest: eos)
        patch.setattr(StepRunner, "decode_rows", watched)
        together = [each.token_ids for each in model.generate(sources, max_new_tokens=12)]
    return together, [until(tokens, eos) for tokens in single], kept


def until(tokens, eos):
    """Tokens up to the first that ends a text."""
    ends = [place for place, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens


def test_sources_go_with_their_rows(translator):
    found, expected, kept = of_sources(translator)
    assert found == expected
    assert max(kept) == 8 and min(kept) < 8


def test_sources_of_other_rows_would_be_noticed(translator, monkeypatch):
    monkeypatch.setattr(EncoderOutputs, "move", lambda *_: None)
    found, expected, _ = of_sources(translator)
    assert found != expected
