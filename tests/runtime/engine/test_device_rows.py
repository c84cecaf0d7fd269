"""The rows of devices, run on the CPU: requests get what they get alone, with and without captured steps."""

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.runtime import Engine, load, static_cache
from edgeformer.runtime.engine import services
from edgeformer.runtime.engine.device_row_decoder import DeviceRowDecoder
from edgeformer.runtime.row_copies import RowCopies

WAIT = 60  # seconds, for what takes milliseconds
START = np.random.default_rng(9).integers(3, 129, 40).tolist()
NEXT = {"max_new_tokens": 6, "ignore_eos": True, "temperature": 2.0, "top_k": 20, "seed": 2}


class CopiesOnADevice(RowCopies):
    """Copies by small graphs, as on a device."""

    def __init__(self, buffers, provider):
        super().__init__(buffers, provider)
        self.on_device = True


@pytest.fixture
def on_a_device(monkeypatch, capturing):
    """A function after which engines have rows of devices; it returns the model, with a session that captures."""

    def change(model, captures=True):
        monkeypatch.setattr(services, "RowDecoder", DeviceRowDecoder)
        monkeypatch.setattr(static_cache, "RowCopies", CopiesOnADevice)
        monkeypatch.setattr(model, "captures", captures)
        monkeypatch.setattr(model, "session", capturing(model.session))
        return model

    return change


def prompts(count):
    return [np.random.default_rng(seed).integers(3, 129, 3 + 9 * (seed % 4)).tolist() for seed in range(count)]


@pytest.mark.parametrize("kind", ["llama", "windows", "recurrent"])
@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize("options", [{}, {"temperature": 2.0, "top_k": 40, "seed": 5}, {"temperature": 1.0, "seed": 5}])
def test_each_request_equals_its_solo_run(models, on_a_device, kind, captures, options):
    model, texts = models(kind), prompts(12)
    lengths = [5 + 7 * (index % 4) + index for index in range(len(texts))]
    alone = [model.generate(each, max_new_tokens=new, **options) for each, new in zip(texts, lengths, strict=True)]
    with Engine(on_a_device(model, captures), max_rows=3) as engine:
        streams = [engine.submit(each, max_new_tokens=new, **options) for each, new in zip(texts, lengths, strict=True)]
        found = [stream.finish(WAIT) for stream in streams]
    assert [each.token_ids for each in found] == [each.token_ids for each in alone]
    assert len({str(each.token_ids) for each in found}) > 3  # a batch that mixed its rows up would be seen
    # A CUDA graph for the first 1, 2 and 3 rows; states and windows would advance in rows that do not run.
    assert set(model.session.runs) <= ({"1", "2", "3"} if captures and kind == "llama" else set())


def conversation(engine):
    """The tokens of requests whose prompts begin alike, go on behind an answer, or run beside another, and what
    they found in the cache."""
    first = engine.submit(START, **NEXT)
    beside = engine.submit(START[::-1], **NEXT | {"max_new_tokens": 40})  # behind a row that is held by then
    first = first.finish(WAIT)
    second = engine.submit([*START, *first.token_ids, 7, 8], **NEXT).finish(WAIT)
    again = engine.submit([*START[:20], 5, 6], **NEXT).finish(WAIT)
    found = [first, second, again, beside.finish(WAIT)]
    last = engine.submit([*START, *first.token_ids, 7, 8, *second.token_ids, 9], **NEXT).finish(WAIT)
    return [each.token_ids for each in [*found, last]], [each.cached_tokens for each in (second, again, last)]


def test_texts_that_begin_alike_are_copied_on_the_device(models, on_a_device):
    model = models("llama")
    with Engine(model, max_rows=3) as engine:
        expected, kept = conversation(engine)
    with Engine(on_a_device(model), max_rows=3) as engine:
        assert conversation(engine) == (expected, kept)
    assert all(kept)


def test_rows_that_are_not_copied_would_be_noticed(models, on_a_device, monkeypatch):
    model = models("llama")
    with Engine(model, max_rows=3) as engine:
        expected, _ = conversation(engine)
    monkeypatch.setattr(RowCopies, "move", lambda *_: None)
    with Engine(on_a_device(model), max_rows=3) as engine:
        assert conversation(engine)[0] != expected


def test_a_token_for_a_row_that_does_not_run_would_be_noticed_within_its_text(models, on_a_device, monkeypatch):
    """A step of more rows than run writes behind the others, and not over their last token."""
    model, written = models("llama"), DeviceRowDecoder.decode_rows
    with Engine(model, max_rows=3) as engine:
        expected, _ = conversation(engine)

    def over_the_last_one(self, first, tokens, candidates=None):
        idle = [row for row in range(3) if not first <= row < first + len(tokens) and self.lengths[row]]
        self.lengths[idle] -= 1
        found = written(self, first, tokens, candidates)
        self.lengths[idle] += 1
        return found

    monkeypatch.setattr(DeviceRowDecoder, "decode_rows", over_the_last_one)
    with Engine(on_a_device(model), max_rows=3) as engine:
        assert conversation(engine)[0] != expected


@pytest.mark.parametrize("kind", ["windows", "recurrent"])
def test_states_are_kept_and_put_back_over_the_device(models, on_a_device, kind):
    model = models(kind)
    with Engine(model, max_rows=3) as engine:
        expected, kept = conversation(engine)
    with Engine(on_a_device(model), max_rows=3) as engine:
        assert conversation(engine) == (expected, kept)
    assert kept[0] or kept[2]


def test_all_rows_have_their_memory_at_once(bundles, monkeypatch):
    model = load(bundles("llama"))
    per_token = model.new_decoder(1, 1).cache.bytes
    monkeypatch.setattr(model, "provider", "cuda")

    class Made(DeviceRowDecoder):
        def __init__(self, session, manifest, rows, tokens, provider, *inputs):
            assert provider == "cuda"
            super().__init__(session, manifest, rows, tokens, "cpu", *inputs)

    monkeypatch.setattr(services, "DeviceRowDecoder", Made)
    monkeypatch.setattr(services, "free_gpu_memory", lambda _: 2 * 4 * 100 * per_token)
    with Engine(model, max_rows=4) as engine:
        assert engine._service.decoder.cache.bytes == 4 * 100 * per_token
        with pytest.raises(RequestError, match="the request can need 101 tokens"):
            engine.submit([3] * 90, max_new_tokens=11)
        assert len(engine.submit([3] * 90, max_new_tokens=10, ignore_eos=True).finish(WAIT).token_ids) == 10
    with pytest.raises(RequestError, match="Give the engine more memory, or fewer rows"):
        Engine(model, max_rows=300, memory=500 * per_token)


def test_encoder_decoders_run_on_the_cpu(bundles, monkeypatch):
    translator = load(bundles("seq2seq"))
    monkeypatch.setattr(translator, "provider", "cuda")
    with pytest.raises(RequestError, match=r"^an engine runs encoder-decoders on the CPU"):
        Engine(translator)
