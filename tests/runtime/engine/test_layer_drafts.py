"""Drafts of the model's own layer in an engine: rows come, go and move, and the layer reads the states of its row."""

from threading import Event

import numpy as np
import pytest
from mtp_models import make_folder

from edgeformer.export import export_model
from edgeformer.runtime import Engine, load
from edgeformer.runtime.engine import causal_service
from edgeformer.runtime.generation.speculation import DraftLength, MultiTokenPrediction

STORY = "Once upon a time, a shy rabbit"
OTHERS = ("There once was a friendly bear", "Mia was a curious girl who lived")
PROMPT = [11, 57, 3, 99, 20, 76, 76, 41, 8, 120, 64, 19]
WAIT = 60  # seconds, for what takes milliseconds


@pytest.fixture(autouse=True)
def always_three(monkeypatch):
    """Draft three tokens whenever a row may, so that no test depends on the time that runs take."""
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 3)


@pytest.fixture(autouse=True)
def no_garbage(monkeypatch):
    """States that nobody has computed are no numbers."""

    class Numpy:
        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, shape, dtype):
            return np.full(shape, np.nan, dtype)

    monkeypatch.setattr(causal_service, "np", Numpy())


@pytest.fixture
def drafted(monkeypatch):
    """The texts behind which the layer drafts three tokens in this test, and what it drafts."""
    found, draft = {}, MultiTokenPrediction.draft

    def recorded(self, count):
        tokens = draft(self, count)
        if count == 3:
            found[tuple(self._text)] = tokens
        return tokens

    monkeypatch.setattr(MultiTokenPrediction, "draft", recorded)
    return found


@pytest.fixture(scope="module")
def recurrent_bundle(make_model, tmp_path_factory):
    """A model with states of fixed size and a layer that drafts."""
    place = tmp_path_factory.mktemp("bundles") / "recurrent"
    return export_model(make_folder(make_model, "qwen3_5_text"), place, mtp=True, verify=None).path


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 2}], ids=["greedy", "sampled"])
def test_a_layer_drafts_what_it_drafts_without_an_engine(tiny_llama_mtp_bundle, drafted, options):
    options |= {"max_new_tokens": 60, "ignore_eos": True}
    model = load(tiny_llama_mtp_bundle, threads=1, draft="mtp")
    wanted, alone = model.generate(STORY, **options), dict(drafted)
    drafted.clear()
    with Engine(model, max_rows=2) as engine:
        found = engine.submit(STORY, **options).finish(WAIT)
        plain = engine.submit(STORY, num_assistant_tokens=0, **options).finish(WAIT)
        counts = engine.statistics()
    assert found.token_ids == plain.token_ids == wanted.token_ids and plain.speculation is None
    assert len(alone) > 10 and drafted == alone
    assert counts.accepted_tokens == found.speculation.accepted == wanted.speculation.accepted > 20


@pytest.mark.parametrize("kind", ["llama", "recurrent"])
def test_a_layer_has_the_states_of_steps_beside_others(
    tiny_llama_mtp_bundle, recurrent_bundle, drafted, monkeypatch, kind
):
    """A row drafts, runs beside two others of which one ends, is moved, and drafts again what it would draft alone."""
    bundle = {"llama": tiny_llama_mtp_bundle, "recurrent": recurrent_bundle}[kind]
    model = load(bundle, threads=1, draft="mtp")
    prompts = [STORY, *OTHERS] if kind == "llama" else [PROMPT, PROMPT[3:], PROMPT[5:]]
    options = {"max_new_tokens": 70, "ignore_eos": True}
    wanted, alone = model.generate(prompts[0], **options), dict(drafted)
    drafted.clear()
    few = {"num_assistant_tokens": 0, "ignore_eos": True}
    plain = [model.generate(prompt, max_new_tokens=20, **few).token_ids for prompt in prompts[1:]]
    begun, ready, moved = len(model.encode(prompts[0])), Event(), []
    with Engine(model, max_rows=3) as engine:
        move = engine._service.move
        monkeypatch.setattr(engine._service, "move", lambda *given: moved.append(given[0]) or move(*given))

        def join(*lengths):
            for prompt, new in zip(prompts[1:], lengths, strict=True):
                beside.append(engine.submit(prompt, max_new_tokens=new, logits_processors=[waiting], **few))

        def waiting(ids, logits):
            assert ready.wait(WAIT)
            return logits

        def visited(ids, logits):
            if len(ids) == begun + 40:
                join(5, 9)
            return logits

        beside = []
        join(20, 6)  # in rows 0 and 1: when row 1 ends, row 2 moves there
        stream = engine.submit(prompts[0], logits_processors=[visited], **options)
        ready.set()
        found = stream.finish(WAIT)
        for stream, new, tokens in zip(beside, (20, 6, 5, 9), plain * 2, strict=True):
            assert stream.finish(WAIT).token_ids == tokens[:new]
    assert any(request.states is not None for request in moved)
    assert found.token_ids == wanted.token_ids
    both = drafted.keys() & alone.keys()
    assert sum(len(text) > begun + 50 for text in both) > 1
    assert {text: drafted[text] for text in both} == {text: alone[text] for text in both}


def test_a_layer_begins_behind_a_prefix_that_was_kept(tiny_llama_mtp_bundle):
    """Held rows and copies of them have keys and values and no states, which are no numbers here."""
    model = load(tiny_llama_mtp_bundle, threads=1, draft="mtp")
    options = {"max_new_tokens": 60, "ignore_eos": True}
    with Engine(model, max_rows=2) as engine:
        text = [*model.encode(STORY), *engine.submit(STORY, **options).finish(WAIT).token_ids]
        for prompt in (text, [*text[:40], 9, 8], text):
            found = engine.submit(prompt, **options).finish(WAIT)
            assert found.cached_tokens > 30 and found.speculation.drafted > 0
            assert found.token_ids == model.generate(prompt, num_assistant_tokens=0, **options).token_ids


def test_the_cache_and_states_of_a_layer_are_part_of_the_memory(tiny_llama_mtp_bundle):
    model = load(tiny_llama_mtp_bundle, threads=1, draft="mtp")
    ready, reached = Event(), Event()

    def hold(ids, logits):
        reached.set()
        assert ready.wait(WAIT)
        return logits

    prompt = list(range(3, 23))
    with Engine(model, max_rows=2) as engine:
        one = engine._service.cache_bytes(40)
        stream = engine.submit(prompt, max_new_tokens=20, logits_processors=[hold])
        assert reached.wait(WAIT)
        of_layer = engine.statistics().cache_bytes - one
        ready.set()
        stream.finish(WAIT)
    config = model.manifest.model
    attention = config.mtp.block.attention
    of_cache = 2 * attention.num_kv_heads * attention.head_dim
    assert of_layer == 40 * 4 * (of_cache + 2 * config.hidden_size)
    with Engine(model, max_rows=2, memory=one + of_layer - 1) as engine:
        found = engine.submit(prompt, max_new_tokens=20, ignore_eos=True).finish(WAIT)
    assert found.speculation is None


def test_a_request_goes_on_where_its_layer_fails(tiny_llama_mtp_bundle, monkeypatch):
    model = load(tiny_llama_mtp_bundle, threads=1, draft="mtp")
    options = {"max_new_tokens": 30, "ignore_eos": True}
    wanted = model.generate(STORY, num_assistant_tokens=0, **options).token_ids
    follow = MultiTokenPrediction._follow

    def failing(self, text):
        if len(text) > 20:
            raise MemoryError("no memory")
        return follow(self, text)

    monkeypatch.setattr(MultiTokenPrediction, "_follow", failing)
    with Engine(model, max_rows=2) as engine, pytest.warns(UserWarning, match="without drafts: no memory"):
        assert engine.submit(STORY, **options).finish(WAIT).token_ids == wanted


def test_a_layer_drafts_nothing_for_an_engine_made_before(tiny_llama_mtp_bundle):
    """Such an engine keeps no states."""
    model = load(tiny_llama_mtp_bundle, threads=1)
    with Engine(model, max_rows=2) as engine:
        model.use_draft("mtp")
        assert engine.submit(STORY, max_new_tokens=8).finish(WAIT).speculation is None
