"""Requests with pictures in an engine: they give the tokens that they give alone, and stall nobody."""

from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest

from edgeformer.errors import PromptLengthError, RequestError
from edgeformer.runtime import Engine, EngineBusyError, LowDetail, OfflineEngine, load
from edgeformer.runtime.generation.scheduling import waiting
from edgeformer.runtime.media.pictures.processors.tiles import Tiles
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.runtime.tasks.vision.picture_prompts import TILES
from edgeformer.runtime.tasks.vision.picture_text import PictureTextLM

PICTURES = [np.random.default_rng(index).integers(0, 256, (84, 40 + 20 * index, 3), np.uint8) for index in range(3)]
OPTIONS = {"max_new_tokens": 12, "ignore_eos": True}
REQUESTS = [
    ("What is left of the circle?", []),
    ("<image> What is left?", PICTURES[:1]),
    ("Look at <image> and <image>. Which is red?", PICTURES[1:]),
    ("no picture at all", []),
    ("<image><image><image>", [PICTURES[2], PICTURES[0], PICTURES[2]]),
]


@pytest.fixture
def model(smolvlm_bundle):
    """Return a model that has seen nothing yet."""
    return load(smolvlm_bundle, "cpu", 1)


@contextmanager
def events_of(model):
    """Yield a list to which every step of rows, piece of a prompt and run of the tower adds its name."""
    events = []

    def noted(name, function):
        def run(*given, **options):
            events.append(name)
            return function(*given, **options)

        return run

    with (
        patch.object(StepRunner, "decode_rows", noted("step", StepRunner.decode_rows)),
        patch.object(StepRunner, "prefill", noted("prompt", StepRunner.prefill)),
        patch.object(PictureTextLM, "_run_tower", noted("tower", PictureTextLM._run_tower)),
    ):
        yield events


@pytest.mark.parametrize("prefix_cache_bytes", [0, None])
def test_rows_give_what_they_give_alone(model, smolvlm_bundle, prefix_cache_bytes):
    alone = [model.generate(prompt, images=images, **OPTIONS).token_ids for prompt, images in REQUESTS]
    assert len(set(map(tuple, alone))) == len(REQUESTS)
    with Engine(load(smolvlm_bundle, "cpu", 1), max_rows=3, prefix_cache_bytes=prefix_cache_bytes) as engine:
        streams = [engine.submit(prompt, images=images, **OPTIONS) for prompt, images in REQUESTS * 2]
        assert [stream.finish().token_ids for stream in streams] == alone * 2


def test_the_tower_runs_once_between_two_steps(model):
    tiles = len(model.processor.values(PICTURES[0]))
    assert tiles > TILES, "a picture takes several runs"
    engine = OfflineEngine(model, max_rows=3, prefix_cache_bytes=0)
    running = engine.submit("What is left?", max_new_tokens=40, ignore_eos=True)
    next(running.events())
    with events_of(model) as events:
        seeing = [engine.submit(f"{index} <image>", images=[PICTURES[index]], **OPTIONS) for index in range(2)]
        running.finish()
        for stream in seeing:
            stream.finish()
    runs = "".join({"step": " ", "prompt": "p", "tower": "t"}[each] for each in events).split(" ")
    assert events.count("tower") == sum(-(-len(model.processor.values(each)) // TILES) for each in PICTURES[:2])
    assert {"t"} <= set(runs) <= {"", "t", "p"}, "nothing else beside a run of the tower between two steps"


def test_a_request_with_a_known_picture_runs_no_tower(model):
    with Engine(model, max_rows=2, prefix_cache_bytes=0) as engine, events_of(model) as events:
        streams = [engine.submit(f"{index} <image>", images=PICTURES[:1], **OPTIONS) for index in range(3)]
        for stream in streams:
            stream.finish()
        once = events.count("tower")
        with patch.object(Tiles, "values", side_effect=AssertionError("it was made values of already")):
            engine.submit("again <image>", images=PICTURES[:1], **OPTIONS).finish()
    assert once == events.count("tower") == -(-len(model.processor.values(PICTURES[0])) // TILES)
    assert len(model.features) == 1


def test_prefixes_with_pictures_are_found_again(model):
    prompt = "<image> What is left of the circle?"
    with Engine(model, max_rows=1) as engine:
        first = engine.submit(prompt, images=PICTURES[:1], **OPTIONS).finish()
        model.features.max_bytes = 0
        model.features._kept.clear()
        with events_of(model) as events:
            longer = engine.submit(prompt + " And right?", images=PICTURES[:1], **OPTIONS).finish()
            assert "tower" not in events, "its tokens are in the cache, so nobody needs its states"
        other = engine.submit(prompt, images=PICTURES[1:2], **OPTIONS).finish()
    assert longer.cached_tokens >= first.prompt_tokens - 1
    assert other.cached_tokens < 16
    for result, question, images in [(longer, prompt + " And right?", PICTURES[:1]), (other, prompt, PICTURES[1:2])]:
        assert result.token_ids == model.generate(question, images=images, **OPTIONS).token_ids


def test_rules_and_drafts_see_the_placeholder_alone(model):
    prompt, images, most = "<image> red red red", PICTURES[:1], model.manifest.vocab_size
    seen = []

    def note(ids, logits):
        seen.append(ids)
        return logits

    penalized = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "no_repeat_ngram_size": 3, "dry_multiplier": 0.8}
    alone = model.generate(prompt, images=images, **penalized, **OPTIONS)
    with Engine(model, max_rows=2) as engine:
        found = engine.submit(prompt, images=images, logits_processors=[note], logprobs=True, **penalized, **OPTIONS)
        drafted = engine.submit(prompt, images=images, prompt_lookup_num_tokens=4, **OPTIONS)
        assert found.finish().token_ids == alone.token_ids
        assert drafted.finish().token_ids == model.generate(prompt, images=images, **OPTIONS).token_ids
    assert max(ids.max() for ids in seen) < most
    assert (seen[0] == model.placeholder.token).sum() == 4 * len(model.processor.values(PICTURES[0]))
    assert all(each.token_id < most for each in found.finish().logprobs)


def test_low_detail_is_one_tile(model):
    high, low = (model.see("<image> a", [each]).shown for each in (PICTURES[0], LowDetail(PICTURES[0])))
    assert low.count(model.placeholder.token) == 4 < high.count(model.placeholder.token)
    whole = model.picture_features(LowDetail(PICTURES[0]))
    assert np.array_equal(whole, model.picture_features(LowDetail(PICTURES[0]))) and len(model.features) == 1
    assert not np.array_equal(whole, model.picture_features(PICTURES[0])[-4:])
    with Engine(model) as engine:
        found = engine.submit("<image> a", images=[LowDetail(PICTURES[0])], **OPTIONS).finish()
    assert found.token_ids == model.generate("<image> a", images=[LowDetail(PICTURES[0])], **OPTIONS).token_ids
    assert found.prompt_tokens == len(low)


def test_a_prompt_that_is_too_long_is_not_decoded(model):
    with (
        Engine(model) as engine,
        patch.object(Tiles, "read", side_effect=AssertionError("it was decoded")),
        pytest.raises(PromptLengthError, match=r"tokens with its pictures, and may have 511"),
    ):
        engine.submit("<image>" * 12, images=[PICTURES[0]] * 12)


def test_a_tower_that_fails_ends_its_own_request(model):
    text = model.generate("What is left?", **OPTIONS).token_ids
    with Engine(model, max_rows=2) as engine:
        beside = engine.submit("What is left?", **OPTIONS)
        with patch.object(PictureTextLM, "_run_tower", side_effect=MemoryError("no room")):
            failing = engine.submit("<image>", images=PICTURES[:1], **OPTIONS)
            with pytest.raises(MemoryError):
                failing.finish()
        after = engine.submit("<image>", images=PICTURES[:1], **OPTIONS).finish()
        assert beside.finish().token_ids == text
    assert after.token_ids == model.generate("<image>", images=PICTURES[:1], **OPTIONS).token_ids


def test_waiting_pictures_take_bounded_memory(model):
    with patch.object(waiting, "PICTURE_BYTES", 1), Engine(model, max_rows=1) as engine:
        busy = engine.submit("a", max_new_tokens=300, ignore_eos=True)
        streams = [engine.submit("<image>", images=[PICTURES[0]], **OPTIONS)]
        with pytest.raises(EngineBusyError, match="1 requests are waiting already, and their pictures take the memory"):
            engine.submit("<image>", images=[PICTURES[1]], **OPTIONS)
        streams.append(engine.submit("text joins", **OPTIONS))
        busy.cancel()
        assert [len(each.finish().token_ids) for each in streams] == [12, 12]


@pytest.mark.parametrize(
    ("prompt", "images", "message"),
    [
        ("<image>", [], "1 placeholder"),
        ("a", [PICTURES[0]], "no placeholders"),
        ("<image>", [b"GIF89a"], "cannot be read"),
        ("<image>", "no list", "cannot be read"),
        ("<image>", 5, "list of pictures"),
    ],
)
def test_wrong_pictures_are_refused_at_once(model, prompt, images, message):
    with Engine(model) as engine, pytest.raises(RequestError, match=message):
        engine.submit(prompt, images=images)


def test_sessions_keep_pictures(model, smolvlm_bundle, tmp_path):
    question = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is left?"}]}
    answer = model.chat([question], images=PICTURES[:1], **OPTIONS).finish()
    more = [question, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "And right?"}]
    expected = model.chat(more, images=PICTURES[:1], **OPTIONS).finish()
    model.save_session(tmp_path / "session", [question])
    other = load(smolvlm_bundle, "cpu", 1)
    assert other.load_session(tmp_path / "session") == [question]
    with events_of(other) as events:
        found = other.chat(more, images=PICTURES[:1], **OPTIONS).finish()
    assert found.token_ids == expected.token_ids
    assert found.cached_tokens >= answer.prompt_tokens and "tower" not in events
