"""The rows of devices, run on the CPU: requests get what they get alone, with and without captured steps."""

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.manifest.providers import CPU, CUDA
from edgeformer.runtime import Engine, load
from edgeformer.runtime.caches import static_cache
from edgeformer.runtime.caches.row_copies import RowCopies
from edgeformer.runtime.engine import service
from edgeformer.runtime.sessions.providers import cuda
from edgeformer.runtime.steps.decode_graph import DecodeGraph
from edgeformer.runtime.steps.device import DeviceSteps
from edgeformer.runtime.steps.new_decoder import MASK_STEP, new_static_cache
from edgeformer.runtime.steps.runner import StepRunner

WAIT = 60  # seconds, for what takes milliseconds
START = np.random.default_rng(9).integers(3, 129, 40).tolist()
NEXT = {"max_new_tokens": 6, "ignore_eos": True, "temperature": 2.0, "top_k": 20, "seed": 2}


class CopiesOnADevice(RowCopies):
    """Copies by small graphs, as on a device."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.on_device = True


def device_rows(graph, rows, capacity, provider=CPU, captures=False):
    """Rows of a device whose memory is on the CPU."""
    cache = new_static_cache(graph, rows, capacity, CPU)
    return StepRunner(cache, DeviceSteps(graph, cache, CPU, captures and cache.trimmable, MASK_STEP))


@pytest.fixture
def on_a_device(monkeypatch, capturing):
    """A function after which engines have rows of devices; it returns the model, with a session that captures."""

    def change(model, captures=True):
        monkeypatch.setattr(service, "new_row_runner", device_rows)
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
    assert bool(model.session.runs) == (captures and kind == "llama")
    assert len(model.session.runs) <= 3


def test_a_second_engine_replays_no_step_of_the_first(models, on_a_device):
    model = models("llama")
    alone = [model.generate(each, **NEXT).token_ids for each in prompts(3)]
    on_a_device(model)
    kept = []  # so that memory of the first engine is still there to be read
    for _ in range(2):
        with Engine(model, max_rows=3) as engine:
            kept.append(engine._service)
            streams = [engine.submit(each, **NEXT) for each in prompts(3)]
            assert [stream.finish(WAIT).token_ids for stream in streams] == alone
    assert len(model.session.runs) >= 2


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


@pytest.mark.parametrize("kind", ["llama", "windows", "recurrent"])
def test_texts_that_begin_alike_go_on_from_what_the_device_has(models, on_a_device, kind):
    model = models(kind)
    with Engine(model, max_rows=3) as engine:
        expected, _ = conversation(engine)
    with Engine(on_a_device(model), max_rows=3) as engine:
        found, kept = conversation(engine)
    assert found == expected
    assert any(kept)


@pytest.fixture
def decoder(models, on_a_device):
    """Three rows, of which the first two have texts, and steps that are captured."""
    model = on_a_device(models("llama"))
    made = device_rows(DecodeGraph(model.session, model.manifest), 3, 96, captures=True)
    for row in range(2):
        made.prefill(row, START[row:])
    return made


def content(decoder, row):
    """Copies of the keys and values of a row."""
    return [array.copy() for array in decoder.cache.read_tokens(row, 0, int(decoder.lengths[row]))]


def same(some, others):
    return all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def test_rows_are_copied_on_the_device(decoder, monkeypatch):
    before = content(decoder, 0)
    decoder.copy(0, 2, 40)
    assert same(content(decoder, 2), before)
    monkeypatch.setattr(RowCopies, "move", lambda *_: None)
    decoder.copy(1, 2, 39)
    assert not same(content(decoder, 2), content(decoder, 1))


def test_a_step_of_more_rows_leaves_the_other_texts(decoder):
    before = content(decoder, 0)
    decoder.decode_rows(1, [7])  # the first two rows are captured together
    assert (decoder.lengths.tolist(), same(content(decoder, 0), before)) == ([40, 40, 0], True)
    decoder.lengths[0] = 39  # such a step would write over the last token
    decoder.decode_rows(1, [8])
    decoder.lengths[0] = 40
    assert not same(content(decoder, 0), before)


def test_rows_that_do_not_run_may_be_longer_than_those_that_do(models, decoder):
    model = models("llama")
    decoder.release(1)
    decoder.prefill(1, [5, 6])
    before = content(decoder, 0)
    alone = device_rows(DecodeGraph(model.session, model.manifest), 1, 96)
    alone.prefill(0, [5, 6])
    np.testing.assert_allclose(decoder.decode_rows(1, [7])[0], alone.decode_rows(0, [7])[0], atol=1e-5)
    assert same(content(decoder, 0), before)


def test_all_rows_have_their_memory_at_once(bundles, monkeypatch):
    model = load(bundles("llama"))
    per_token = model.new_decoder(1, 1).cache.bytes
    monkeypatch.setattr(model, "provider", CUDA)

    def made(graph, rows, tokens, provider, captures):
        assert provider is CUDA
        return device_rows(graph, rows, tokens)

    monkeypatch.setattr(service, "new_row_runner", made)
    monkeypatch.setattr(cuda, "free_gpu_memory", lambda _: 2 * 4 * 100 * per_token)
    with Engine(model, max_rows=4) as engine:
        assert engine._service.decoder.cache.bytes == 4 * 100 * per_token
        with pytest.raises(RequestError, match="the request can need 101 tokens"):
            engine.submit([3] * 90, max_new_tokens=11)
        assert len(engine.submit([3] * 90, max_new_tokens=10, ignore_eos=True).finish(WAIT).token_ids) == 10
    with pytest.raises(RequestError, match="Give the engine more memory, or fewer rows"):
        Engine(model, max_rows=300, memory=500 * per_token)


def test_encoder_decoders_run_on_the_cpu(bundles, monkeypatch):
    translator = load(bundles("seq2seq"))
    monkeypatch.setattr(translator, "provider", CUDA)
    with pytest.raises(RequestError, match=r"^an engine runs encoder-decoders on the CPU"):
        Engine(translator)
