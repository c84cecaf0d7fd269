"""The decoder of devices, run on the CPU: the tokens of the CPU's own decoder, with and without captured steps."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import small_models

from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.manifest.providers import CPU
from edgeformer.runtime import load
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions.session import graph_run
from edgeformer.runtime.steps.decode_graph import DecodeGraph
from edgeformer.runtime.steps.device import CapturedSteps, DeviceSteps
from edgeformer.runtime.steps.device_logits import (
    MOST_CANDIDATES,
    DeviceLogits,
    all_graph,
    candidates_graph,
    device_logits,
    row_graph,
)
from edgeformer.runtime.steps.new_decoder import device_runner
from edgeformer.runtime.tasks import causal_lm, encoder_decoder

KINDS = {
    "grouped": ("qwen3", {}, {}),
    "int8": ("qwen3", {}, {"cache_precision": "int8"}),
    **{kind: small_models.KINDS[kind] for kind in ("windows", "recurrent", "standard")},
}
PROMPTS = [np.random.default_rng(row).integers(2, 130, length).tolist() for row, length in enumerate((11, 3, 7))]
SAMPLED = {"temperature": 2.0, "top_k": 20, "seed": 3}


@pytest.fixture(scope="module", params=KINDS)
def model(make_model, tmp_path_factory, request):
    family, sizes, options = KINDS[request.param]
    folder = make_model(family, 3, **small_models.TEXT, **sizes)
    return load(export_model(folder, tmp_path_factory.mktemp(request.param) / "b", verify=None, **options).path)


@pytest.fixture
def grouped(make_model, tmp_path):
    return load(export_model(make_model("qwen3", 3, **small_models.TEXT), tmp_path / "b", verify=None).path)


@pytest.fixture
def on_a_device(monkeypatch, capturing):
    """A function after which models have decoders of devices, with captured steps or without."""

    def change(model, captured=None):
        def new_decoder(session, manifest, rows, tokens, provider, encoder_outputs=None, **_):
            return device_runner(DecodeGraph(session, manifest, encoder_outputs), rows, tokens, provider, captured)

        for module in causal_lm, encoder_decoder:
            monkeypatch.setattr(module, "new_decoder", new_decoder)
        if captured is not None:
            model.session = capturing(model.session)
        return model

    return change


@pytest.fixture
def restored(model):
    """The model, whose session is put back after the test."""
    session = model.session
    yield model
    model.session = session


def answers(model, **options):
    """The tokens of requests: prompts alone, and all in one batch whose rows end at different steps."""
    options = {"max_new_tokens": 12, "ignore_eos": True, **options}
    alone = [model.generate(prompt, **options).token_ids for prompt in PROMPTS]
    return alone, [each.token_ids for each in model.generate(PROMPTS, **options)]


@pytest.mark.parametrize("options", [{}, SAMPLED, {"temperature": 0.9, "seed": 3}, {"repetition_penalty": 1.3}])
def test_tokens_are_those_of_the_cpus_decoder(restored, on_a_device, options):
    expected = answers(restored, **options)
    assert answers(on_a_device(restored), **options) == expected


def test_a_replay_reads_what_each_step_writes(restored, on_a_device):
    expected = answers(restored, **SAMPLED)
    model = on_a_device(restored, CapturedSteps(96))
    assert answers(model, **SAMPLED) == expected
    assert answers(model, **SAMPLED) == expected  # over memory of requests before


def test_memory_of_other_requests_would_be_noticed(grouped, on_a_device):
    """The steps of a batch, which are replays of a graph over the memory of a single row."""
    expected = answers(grouped, **SAMPLED)
    model = on_a_device(grouped, CapturedSteps(96))
    model.session.new_graph_run = lambda: graph_run(1)
    with np.errstate(invalid="ignore"):  # what the memory had may be no number
        assert answers(model, **SAMPLED) != expected


@pytest.mark.parametrize("model", ["recurrent", "windows"], indirect=True)
def test_states_that_a_capture_advances_would_be_noticed(restored, on_a_device, monkeypatch):
    expected = answers(restored, **SAMPLED)
    monkeypatch.setattr(StaticCache, "restore", lambda *_: None)
    assert answers(on_a_device(restored, CapturedSteps(96)), **SAMPLED) != expected


def in_a_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.parametrize("model", ["grouped", "recurrent", "windows"], indirect=True)
def test_each_thread_captures_by_itself(restored, on_a_device):
    expected = answers(restored, **SAMPLED)
    model = on_a_device(restored, CapturedSteps(96))
    for _ in range(2):
        assert answers(model, **SAMPLED) == expected
        assert in_a_thread(lambda: answers(model, **SAMPLED)) == expected


@pytest.mark.parametrize("model", ["recurrent"], indirect=True)
def test_a_stream_may_go_on_in_another_thread(restored, on_a_device):
    options = {**SAMPLED, "max_new_tokens": 12, "ignore_eos": True}
    expected = restored.generate(PROMPTS[0], **options).token_ids
    model = on_a_device(restored, CapturedSteps(96))
    stream = model.stream(PROMPTS[0], **options)
    events = stream.events()
    begun = [next(events).token_id for _ in range(3)]
    begun += in_a_thread(lambda: [next(events).token_id for _ in range(3)])
    assert begun + [event.token_id for event in events] == expected


def test_free_memory_makes_room_for_another_shape(monkeypatch):
    captured, room, made = CapturedSteps(96), 2, []

    class Memory:
        begin = lambda self: None  # noqa: E731

        def __init__(self):
            made.append(weakref.ref(self))
            if sum(each() is not None for each in made) > room:
                raise RequestError("no room")

    class Holder:
        pass

    def lend(owner, rows):
        captured.lend(owner, rows, 256, captured.take(rows, 256, Memory))

    one, other = Holder(), Holder()
    lend(one, 1)
    lend(other, 2)
    with pytest.raises(RequestError):  # both are in use
        lend(Holder(), 3)
    del one
    third = Holder()
    lend(third, 3)
    assert sum(each() is not None for each in made) == room


def test_finished_requests_leave_their_memory_to_later_ones(grouped, on_a_device):
    captured = CapturedSteps(96)
    model = on_a_device(grouped, captured)
    for _ in range(3):
        model.generate(PROMPTS[0], max_new_tokens=5, ignore_eos=True)
    assert model.session.runs == {"1": 3 + 3 * 4 - 1}
    first, second = model.new_decoder(1, 20), model.new_decoder(1, 20)
    assert first.memory is not second.memory
    second.prefill(0, [5, 6])
    assert second.decode_one_token([7]).shape == (1, 131)
    assert set(model.session.runs) == {"1", "2"}
    model.generate(PROMPTS, max_new_tokens=2, ignore_eos=True)
    assert set(model.session.runs) == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("tokens", "capacity"), [(1, 256), (256, 256), (257, 512), (700, 1000), (1000, 1000), (1001, 1001)]
)
def test_memory_has_room_for_a_power_of_two(tokens, capacity):
    assert CapturedSteps(1000).capacity_for(tokens) == capacity


def test_prompts_in_pieces_come_to_the_same_logits(grouped, on_a_device):
    text = np.random.default_rng(5).integers(2, 130, 60)
    expected = grouped.new_decoder(1, 60).prefill(0, text)
    model = on_a_device(grouped)
    for chunk in (None, 7, 60):
        np.testing.assert_allclose(model.new_decoder(1, 60).prefill(0, text, chunk=chunk), expected, atol=1e-5)


def test_logits_of_a_large_vocabulary_are_made_in_shorter_pieces(grouped, on_a_device, monkeypatch):
    monkeypatch.setattr("edgeformer.runtime.steps.device.CHUNK_BYTES", 131 * 4 * 9)
    # As a graph of another exporter, which has no optional input.
    monkeypatch.setattr(grouped.session, "get_overridable_initializers", lambda: [])
    decoder, lengths = on_a_device(grouped).new_decoder(1, 60), []
    run = DeviceSteps.run_prompt
    monkeypatch.setattr(
        DeviceSteps,
        "run_prompt",
        lambda self, row, ids, length: lengths.append(len(ids)) or run(self, row, ids, length),
    )
    decoder.prefill(0, range(2, 30))
    assert lengths == [9, 9, 9, 1]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 1), ({"temperature": 1.0, "top_k": 7, "top_p": 0.9}, 7), ({"temperature": 1.0, "top_p": 0.9}, None),
        ({"temperature": 1.0, "top_k": 7, "top_h": 0.5}, None), ({"logprobs": True}, None),
        ({"repetition_penalty": 1.2}, None), ({"logit_bias": {5: 1.0}}, None), ({"min_new_tokens": 3}, None),
    ],
)  # fmt: skip
def test_requests_that_a_few_candidates_decide(grouped, options, count):
    assert grouped.new_row(PROMPTS[0], max_new_tokens=4, **options).candidate_count == count


def test_no_logits_are_copied_for_a_greedy_step(grouped, on_a_device, monkeypatch):
    model = on_a_device(grouped)
    monkeypatch.setattr(DeviceLogits, "all", None)  # so that a call of it is an error
    assert len(model.generate(PROMPTS[0], max_new_tokens=4, ignore_eos=True).token_ids) == 4
    with pytest.raises(TypeError):  # as of None
        model.generate(PROMPTS[0], max_new_tokens=4, ignore_eos=True, repetition_penalty=1.2)


def test_equally_likely_tokens_are_all_candidates(grouped, on_a_device):
    decoder = on_a_device(grouped).new_decoder(2, 8)
    logits = np.zeros((2, 1, 131), np.float32)
    logits[0, 0, [90, 3, 40, 7]] = 2, 1, 1, 1
    logits[1, 0, [5, 4, 3]] = 3, 2, 1
    decoder.memory._run_step = lambda *_: decoder.memory._logits.put(logits)
    first, second = decoder.decode_rows(0, [0, 0], 2)
    assert first.ids.tolist() == [3, 7, 40, 90] and first.logits.tolist() == [1, 1, 1, 2]
    assert second.ids.tolist() == [4, 5]
    assert [each.ids.tolist() for each in decoder.decode_rows(0, [0, 0], 1)] == [[90], [5]]
    logits[0, 0, 90] = 1
    first, _ = decoder.decode_rows(0, [0, 0], 1)
    assert first.ids[first.logits.argmax()] == 3 == logits[0, 0].argmax()


@pytest.mark.parametrize("count", [MOST_CANDIDATES + 1, 131, 500])
def test_many_candidates_are_read_from_all_logits(grouped, on_a_device, count):
    options = {"temperature": 2.0, "top_k": count, "seed": 1, "max_new_tokens": 12, "ignore_eos": True}
    expected = grouped.generate(PROMPTS[0], **options).token_ids
    decoder = on_a_device(grouped).new_decoder(1, 8)
    assert decoder.decode_rows(0, [0], count).shape == (1, 131)
    assert grouped.generate(PROMPTS[0], **options).token_ids == expected


def test_translations_are_those_of_the_cpus_decoder(make_model, tmp_path, on_a_device):
    folder = make_model("t5", 3, auto="AutoModelForSeq2SeqLM", **small_models.T5)
    model = load(export_model(folder, tmp_path / "b", verify=None, context_length=96).path)

    def translations():
        options = {"max_new_tokens": 9, "ignore_eos": True}
        return [[each.token_ids for each in model.generate(PROMPTS, num_beams=beams, **options)] for beams in (1, 2)]

    expected = translations()
    on_a_device(model)
    assert translations() == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_graphs_are_valid_and_take_any_sizes(dtype):
    for graph in (all_graph(np.dtype(dtype)), row_graph(np.dtype(dtype)), candidates_graph(np.dtype(dtype))):
        onnx.checker.check_model(onnx.load_from_string(graph), full_check=True)
    reader = device_logits(np.dtype(dtype), CPU)
    assert reader is device_logits(np.dtype(dtype), CPU)
    logits = np.random.default_rng(0).standard_normal((1, 5, 300)).astype(dtype)
    value = ort.OrtValue.ortvalue_from_numpy(logits)
    assert reader.row(value, 3).tolist() == logits[0, 3].tolist()
