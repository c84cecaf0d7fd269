"""Many requests at once: each gets what it gets alone, whoever comes, goes, or fails beside it."""

import threading

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.runtime import Engine, EngineBusyError, GenerationConfig, OfflineEngine, load
from edgeformer.runtime.text.streaming import TextStream

PROMPTS = ["Once upon a time, there was a dog", "a", "12 + 30 = ", "The old bear walked to the river. " * 40]
SOURCES = [
    np.random.default_rng(seed).integers(3, 100, length).tolist() for seed, length in enumerate((9, 4, 17, 1, 6))
]
TALES = [f"{name} went to the {place} and" for name in ("Tom", "Lily", "The bear") for place in ("wood", "lake")]
TALE = {"max_new_tokens": 60, "temperature": 1.0, "seed": 3, "ignore_eos": True}
WAIT = 60  # seconds, for what takes milliseconds


def prompts_of(kind):
    if kind == "llama":
        return PROMPTS
    return [np.random.default_rng(seed).integers(3, 129, length).tolist() for seed, length in enumerate((3, 31, 9, 20))]


@pytest.mark.parametrize("kind", ["llama", "windows", "recurrent"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_k": 40, "seed": 5}], ids=["greedy", "sampled"])
def test_each_request_equals_its_solo_run(models, kind, options):
    model, prompts = models(kind), prompts_of(kind) * 3
    # Different lengths, so that rows end at different steps and later requests take their places.
    lengths = [5 + 7 * (index % 4) + index for index in range(len(prompts))]
    alone = [
        model.generate(prompt, max_new_tokens=new, **options) for prompt, new in zip(prompts, lengths, strict=True)
    ]
    with Engine(model, max_rows=3) as engine:
        streams = [
            engine.submit(prompt, max_new_tokens=new, **options) for prompt, new in zip(prompts, lengths, strict=True)
        ]
        found = [stream.finish(WAIT) for stream in streams]
        statistics = engine.statistics()
    assert [each.token_ids for each in found] == [each.token_ids for each in alone]
    assert [(each.text, each.finish_reason) for each in found] == [(each.text, each.finish_reason) for each in alone]
    assert len({str(each.token_ids) for each in found}) > 3  # a batch that mixed its rows up would be seen
    assert (statistics.finished, statistics.failed, statistics.running, statistics.cache_bytes) == (12, 0, 0, 0)
    assert statistics.generated_tokens == sum(len(each.token_ids) for each in alone)
    assert statistics.steps < statistics.generated_tokens / 1.5  # rows shared steps


def test_who_sees_the_end_of_a_stream_finds_it_counted(models):
    seen, listening = [], threading.Event()

    def hold(token_ids, logits):
        assert listening.wait(WAIT)
        return logits

    def look(stream):
        if stream.ended:
            seen.append(engine.statistics().finished)

    with Engine(models("llama"), max_rows=1) as engine:
        stream = engine.submit([5, 6, 7], max_new_tokens=3, ignore_eos=True, logits_processors=[hold])
        stream.add_listener(look)
        listening.set()
        stream.finish(WAIT)
    assert seen == [1]


def test_rows_give_their_memory_back_when_no_request_has_them(models):
    with Engine(models("llama"), max_rows=3, prefix_cache_bytes=0) as engine:
        written = watch_rows(engine)
        streams = [engine.submit(prompt, max_new_tokens=6 + 9 * index) for index, prompt in enumerate(PROMPTS)]
        streams.append(engine.submit(PROMPTS[-1], max_new_tokens=200))
        streams.append(engine.submit(PROMPTS[0], logits_processors=[failing]))
        next(streams[-2].events())
        streams[-2].cancel()
        for stream in streams[:-2]:
            stream.finish(WAIT)
        with pytest.raises(ZeroDivisionError):
            streams[-1].finish(WAIT)
        engine.close()
        assert max(written) > 0  # or the test would see nothing
        assert rows_written(engine) == 0


def failing(ids, logits):
    raise ZeroDivisionError


def rows_written(engine):
    """Return how many rows of the cache have pages that are not zero."""
    cache = engine._service.decoder.cache
    return sum(any(buffer.host()[row].any() for buffer in cache._buffers) for row in range(cache.batch_size))


def watch_rows(engine):
    """Count the rows with content before each step."""
    counts, decode = [0], engine._service.decoder.decode_rows

    def counted(first, tokens, *rest):
        counts.append(rows_written(engine))
        return decode(first, tokens, *rest)

    engine._service.decoder.decode_rows = counted
    return counts


def test_rows_of_an_encoder_decoder_equal_their_solo_runs(models):
    model, options = models("seq2seq"), {"max_new_tokens": 14, "no_repeat_ngram_size": 2}
    alone = [model.generate(source, **options).token_ids for source in SOURCES]
    with Engine(model, max_rows=2) as engine:
        streams = [engine.submit(source, **options) for source in SOURCES]
        assert [stream.finish(WAIT).token_ids for stream in streams] == alone
        with pytest.raises(RequestError, match="no beams"):
            engine.submit(SOURCES[0], num_beams=3)
    assert len({str(tokens) for tokens in alone}) > 2


def test_a_stream_hands_out_its_tokens_once(models):
    model = models("llama")
    expected = model.generate("Once upon a time", max_new_tokens=20)
    with Engine(model) as engine:
        pieces = list(engine.submit("Once upon a time", max_new_tokens=20))
        assert len(pieces) > 1 and "".join(pieces) == expected.text
        stream, ended, polled = engine.submit("Once upon a time", max_new_tokens=20), False, []
        called, waiting = [], threading.Event()
        stream.add_listener(lambda stream: (called.append(stream), stream.ended and waiting.set()))
        assert waiting.wait(WAIT)
        while not ended:
            events, ended = stream.poll()
            polled += events
        assert [event.token_id for event in polled] == expected.token_ids
        assert "".join(event.text for event in polled) == expected.text
        assert set(called) == {stream} and len(called) > 10
        assert stream.poll() == ([], True) and list(stream) == [] and list(stream.events()) == []


@pytest.mark.parametrize("options", [{}, {"stop": "friend"}, {"ignore_eos": True}], ids=["eos", "stop", "length"])
def test_what_is_read_early_and_late_is_the_whole_text(models, options):
    model = models("llama")
    expected = model.generate("Once upon a time", max_new_tokens=60, **options)
    with Engine(model) as engine:
        stream = engine.submit("Once upon a time", max_new_tokens=60, **options)
        first = [next(stream.events()) for _ in range(7)]
        assert stream.finish(WAIT).text == expected.text
        rest = list(stream.events())
    assert "".join(event.text for event in first + rest) == expected.text
    assert [event.token_id for event in first + rest] == expected.token_ids


def test_texts_are_decoded_by_who_reads_them(models, monkeypatch):
    model, decoding = models("llama"), []
    push = TextStream.push
    monkeypatch.setattr(
        TextStream, "push", lambda self, token: decoding.append(threading.current_thread()) or push(self, token)
    )
    with Engine(model) as engine:
        engine.submit("Once upon a time", max_new_tokens=20).finish(WAIT)
        assert decoding == []  # the whole text was decoded at its end
        pieces = list(engine.submit("Once upon a time", max_new_tokens=20))
        assert len(pieces) > 1 and set(decoding) == {threading.current_thread()}
        decoding.clear()
        # A stop string has to be seen before the next step.
        engine.submit("Once upon a time", max_new_tokens=20, stop="friend").finish(WAIT)
        assert decoding and threading.current_thread() not in decoding


def test_a_cancelled_request_has_the_text_of_its_tokens(models):
    model, gate = models("llama"), Gate()
    with Engine(model) as engine:
        stream = engine.submit("Once upon a time", max_new_tokens=200, ignore_eos=True)
        events = [next(stream.events()) for _ in range(9)]
        held = engine.submit("a", max_new_tokens=1, logits_processors=[gate])
        assert gate.reached.wait(WAIT)
        stream.cancel()
        gate.opened.set()
        result = stream.finish(WAIT)
        held.finish(WAIT)
        events += stream.events()
    assert result.finish_reason == "cancelled" and 9 <= len(result.token_ids) < 200
    assert [event.token_id for event in events] == result.token_ids
    assert "".join(event.text for event in events) == result.text == model.tokenizer.decode(result.token_ids)


def test_a_cancelled_request_ends_with_the_partial_character(models):
    model = models("llama")
    smile = model.encode("\N{GRINNING FACE}")[-4:]  # one token for each byte

    def smiling(ids, logits):
        logits = np.full_like(logits, -np.inf)
        logits[smile[(len(ids) - 3) % 4]] = 0
        return logits

    with Engine(model) as engine:
        stream = engine.submit([5, 6, 7], max_new_tokens=100, logits_processors=[smiling])
        events = [next(stream.events()) for _ in range(6)]
        stream.cancel()
        result = stream.finish(WAIT)
        events += stream.events()
    assert result.finish_reason == "cancelled" and len(events) == len(result.token_ids)
    smiles = len(result.token_ids) // 4
    assert result.text.rstrip("\N{REPLACEMENT CHARACTER}") == "\N{GRINNING FACE}" * smiles
    # A piece has whole characters, but for the last one of a stream that is not read by then.
    assert result.text.startswith("".join(event.text for event in events))


def released_rows(engine):
    """List the rows whose memory the engine gives back."""
    rows, release = [], engine._service.decoder.release
    engine._service.decoder.release = lambda row: rows.append(row) or release(row)
    return rows


def sizes_of_steps(engine):
    """List how many rows each step has."""
    sizes, decode = [], engine._service.decoder.decode_rows
    engine._service.decoder.decode_rows = lambda first, tokens, *rest: (
        sizes.append(len(tokens)) or decode(first, tokens, *rest)
    )
    return sizes


def test_a_row_keeps_its_memory_for_a_request_of_half_of_it(models):
    with Engine(models("llama"), max_rows=1) as engine:
        released = released_rows(engine)
        bytes_of = engine._service.cache_bytes
        for prompt, new, kept in [(60, 40, True), (30, 25, True), (20, 20, False), (40, 30, True)]:
            gate = Gate()
            tokens = np.random.default_rng(prompt).integers(3, 100, prompt).tolist()
            stream = engine.submit(tokens, max_new_tokens=new, ignore_eos=True, logits_processors=[gate])
            assert gate.reached.wait(WAIT)
            assert (released == []) == kept
            # The first request wrote all its tokens but the last.
            assert engine.statistics().cache_bytes == bytes_of(99 if (prompt, new) == (30, 25) else prompt + new)
            gate.opened.set()
            stream.finish(WAIT)
            released.clear()


@pytest.mark.parametrize(("tokens", "released"), [(100, True), (140, False)])
def test_memory_that_a_row_keeps_keeps_no_other_request_out(models, tokens, released):
    model = models("llama")
    with Engine(model, max_rows=2) as engine:
        memory = engine._service.cache_bytes(tokens)

    def submit(engine, start, prompt, new, *processors):
        tokens = list(range(start, start + prompt))
        return engine.submit(tokens, max_new_tokens=new, ignore_eos=True, logits_processors=processors)

    with Engine(model, max_rows=2, memory=memory) as engine:
        for stream in [submit(engine, 3, 56, 10), submit(engine, 70, 20, 14)]:  # the longer text ends first
            stream.finish(WAIT)
        rows, steps, gate = released_rows(engine), sizes_of_steps(engine), Gate()
        first = submit(engine, 40, 20, 20, gate)  # takes the row of the longer text
        assert gate.reached.wait(WAIT)
        assert bool(rows) == released
        second = submit(engine, 90, 20, 20)
        gate.opened.set()
        for stream in (first, second):
            stream.finish(WAIT)
    assert max(steps) == 2


def test_a_row_keeps_the_memory_that_its_next_request_needs(models):
    model = models("llama")
    with Engine(model, max_rows=2) as engine:
        memory = engine._service.cache_bytes(300)

    def submit(engine, start, prompt, new):
        return engine.submit(list(range(start, start + prompt)), max_new_tokens=new, ignore_eos=True)

    with Engine(model, max_rows=2, memory=memory) as engine:
        for stream in [submit(engine, 3, 110, 50), submit(engine, 50, 40, 90)]:  # the first one ends first
            stream.finish(WAIT)
        released = released_rows(engine)
        submit(engine, 9, 110, 60).finish(WAIT)  # in the row of the first, and more than a half of the memory
    assert released == []


def test_a_request_that_moves_counts_the_memory_of_its_new_row(models):
    model, gates = models("llama"), [Gate(), Gate()]
    with Engine(model, max_rows=2) as engine:
        bytes_of = engine._service.cache_bytes
        engine.submit(list(range(3, 63)), max_new_tokens=40, ignore_eos=True).finish(WAIT)
        # Row 0 is held with 99 tokens: the next request gets row 1, and the one behind it row 0, of which it needs 60.
        first = engine.submit(list(range(70, 90)), max_new_tokens=5, ignore_eos=True, logits_processors=[gates[0]])
        assert gates[0].reached.wait(WAIT)
        second = engine.submit(list(range(40, 70)), max_new_tokens=30, ignore_eos=True, logits_processors=[gates[1]])
        gates[0].opened.set()
        assert gates[1].reached.wait(WAIT)
        of_second = engine.statistics().cache_bytes - (0 if first.ended else bytes_of(25))
        assert of_second == bytes_of(99)
        request = next(each for each in engine._turns._batch() if each.stream is second)
        engine._service.move(request, 1 - request.place)
        assert engine.statistics().cache_bytes - (0 if first.ended else bytes_of(25)) == bytes_of(60)
        engine._service.move(request, 1 - request.place)
        gates[1].opened.set()
        second.finish(WAIT)


class Gate:
    """A logits processor that stops the engine's thread until it is opened."""

    def __init__(self):
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, input_ids, logits):
        self.reached.set()
        assert self.opened.wait(WAIT)
        return logits


def test_an_error_of_one_request_is_its_own(models):
    model = models("llama")

    def broken(input_ids, logits):
        if len(input_ids) > 8:
            raise ZeroDivisionError("the processor of one request")
        return logits

    expected = [model.generate(prompt, max_new_tokens=12).token_ids for prompt in PROMPTS[:3]]
    with Engine(model, max_rows=4) as engine:
        streams = [engine.submit(prompt, max_new_tokens=12) for prompt in PROMPTS[:2]]
        failing = engine.submit("Once", max_new_tokens=12, logits_processors=[broken])
        streams.append(engine.submit(PROMPTS[2], max_new_tokens=12))
        assert [stream.finish(WAIT).token_ids for stream in streams] == expected
        with pytest.raises(ZeroDivisionError, match="the processor of one request"):
            failing.finish(WAIT)
        with pytest.raises(ZeroDivisionError):
            list(failing)
        assert isinstance(failing.error, ZeroDivisionError)
        assert (engine.statistics().failed, engine.statistics().finished) == (1, 3)


def test_a_cancelled_request_frees_its_row(models):
    model, gate = models("llama"), Gate()
    expected = model.generate("a", max_new_tokens=6).token_ids
    with Engine(model, max_rows=1) as engine:
        running = engine.submit("Once", max_new_tokens=500, logits_processors=[gate])
        assert gate.reached.wait(WAIT)
        waiting, later = engine.submit("b", max_new_tokens=5), engine.submit("a", max_new_tokens=6)
        waiting.cancel()
        running.cancel()
        gate.opened.set()
        assert later.finish(WAIT).token_ids == expected
        assert running.finish(WAIT).finish_reason == waiting.finish(WAIT).finish_reason == "cancelled"
        assert len(running.finish().token_ids) == 1 and waiting.finish().token_ids == []
        assert engine.statistics().cancelled == 2


def test_a_full_queue_says_when_to_come_back(models):
    gate = Gate()
    with Engine(models("llama"), max_rows=1, max_queue=2) as engine:
        engine.submit("Once", max_new_tokens=2, logits_processors=[gate])
        assert gate.reached.wait(WAIT)
        queued = [engine.submit("Once", max_new_tokens=2) for _ in range(2)]
        with pytest.raises(EngineBusyError, match="2 requests are waiting already") as busy:
            engine.submit("Once", max_new_tokens=2)
        assert busy.value.retry_after >= 1
        assert (engine.statistics().waiting, engine.statistics().running) == (2, 1)
        gate.opened.set()
        assert all(stream.finish(WAIT).finish_reason == "length" for stream in queued)


def test_a_request_is_admitted_if_its_cache_fits(models):
    model, gate = models("llama"), Gate()
    per_token = model.new_decoder(1, 1).cache.bytes
    with Engine(model, max_rows=4, memory=100 * per_token) as engine:
        with pytest.raises(RequestError, match=r"can need 104 tokens.*this engine has"):
            engine.submit([3, 4, 5, 6], max_new_tokens=100)
        first = engine.submit([3, 4, 5, 6], max_new_tokens=56, min_new_tokens=56, logits_processors=[gate])
        assert gate.reached.wait(WAIT)
        large, small = (
            engine.submit([3] * length, max_new_tokens=new, min_new_tokens=new) for length, new in ((10, 40), (1, 9))
        )
        assert engine.statistics().cache_bytes == 60 * per_token
        gate.opened.set()
        assert [len(stream.finish(WAIT).token_ids) for stream in (first, large, small)] == [56, 40, 9]


@pytest.mark.parametrize("drain", [True, False])
def test_closing_ends_what_was_accepted(models, drain):
    gate = Gate()
    engine = Engine(models("llama"), max_rows=1)
    streams = [engine.submit("Once", max_new_tokens=8, logits_processors=[gate]) for _ in range(2)]
    assert gate.reached.wait(WAIT)
    closing = threading.Thread(target=engine.close, args=(drain,))
    closing.start()
    gate.opened.set()
    closing.join(WAIT)
    reasons = [stream.finish(WAIT).finish_reason for stream in streams]
    assert reasons == (["length"] * 2 if drain else ["cancelled"] * 2)
    with pytest.raises(RequestError, match="the engine is closed"):
        engine.submit("Once")


def test_a_listener_that_raises_fails_its_request_only(models):
    gate = Gate()
    with Engine(models("llama"), max_rows=2) as engine:
        stream = engine.submit("Once", max_new_tokens=3, logits_processors=[gate])
        stream.add_listener(lambda stream: 1 / 0)
        gate.opened.set()
        with pytest.raises(ZeroDivisionError):
            stream.finish(WAIT)
        assert engine.submit("Once", max_new_tokens=3).finish(WAIT).finish_reason == "length"


def test_a_dynamic_cache_is_refused_with_the_way_out(bundles):
    folder = bundles("windows", ops="portable")
    with pytest.raises(RequestError, match=r"a dynamic cache \(--ops portable\).*Export it with --ops ort, or with"):
        Engine(load(folder))


def test_a_static_cache_of_standard_ops_is_served(bundles):
    model = load(bundles("windows", ops="standard", cache="static"))
    prompts = prompts_of("windows")
    alone = [model.generate(prompt, max_new_tokens=9).token_ids for prompt in prompts]
    with Engine(model, max_rows=2) as engine:
        streams = [engine.submit(prompt, max_new_tokens=9) for prompt in prompts]
        assert [stream.finish(WAIT).token_ids for stream in streams] == alone


def test_texts_of_many_callers_are_embedded_together(models):
    model = models("embed")
    texts = ["a", "the old bear walked to the river", "b c", "12 and 30", "x"] * 3
    expected = model.embed(texts)
    with Engine(model, max_rows=4) as engine:
        found, threads = {}, []
        for index, text in enumerate(texts):
            threads.append(threading.Thread(target=lambda i=index, t=text: found.update({i: engine.embed(t)})))
            threads[-1].start()
        for thread in threads:
            thread.join(WAIT)
        assert np.abs(np.stack([found[index] for index in range(len(texts))]) - expected).max() < 1e-5
        assert np.abs(engine.embed(texts) - expected).max() < 1e-5
        with pytest.raises(RequestError, match="runs an encoder, which generates nothing"):
            engine.submit("a")
    with Engine(models("llama")) as engine, pytest.raises(RequestError, match="a model that generates. Use submit"):
        engine.embed("a")


class HeldUp:
    """An encoder that runs no batch until it may, and counts the texts that it runs."""

    def __init__(self, model, monkeypatch):
        self.began, self.may, self.texts = threading.Event(), threading.Event(), 0
        run = model.embed_encoded

        def held_up(encoded):
            self.began.set()
            assert self.may.wait(WAIT)
            self.texts += len(encoded)
            return run(encoded)

        monkeypatch.setattr(model, "embed_encoded", held_up)


def test_texts_that_nobody_waits_for_are_not_run(models, monkeypatch):
    model = models("embed")
    expected = model.embed("the last one")
    held = HeldUp(model, monkeypatch)
    with Engine(model, max_rows=1) as engine:
        [first] = engine.submit_texts(["the first one"])
        assert held.began.wait(WAIT)
        cancelled = engine.submit_texts(["a", "b", "c"])
        with pytest.raises(TimeoutError):
            engine.embed(["d", "e"], timeout=0.01)
        [last] = engine.submit_texts(["the last one"])
        assert all(future.cancel() for future in cancelled)
        assert not first.cancel(), "a text that runs cannot be cancelled"
        held.may.set()
        assert np.abs(last.result(WAIT) - expected).max() < 1e-5 and first.result(WAIT).shape == expected.shape
        counts = engine.statistics()
    assert held.texts == 2, "two of seven texts are run"
    assert (counts.finished, counts.cancelled, counts.waiting) == (2, 5, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_rows": 0}, "max_rows is 0; it must be between 1"), ({"max_queue": 0.5}, "max_queue is 0.5 (float)"),
     ({"memory": 9}, "memory is 9 bytes, and a row of two tokens takes")],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(models, options, message):
    with pytest.raises(RequestError) as error:
        Engine(models("llama"), **options)
    assert message in str(error.value)


def test_a_config_is_that_of_generate(models):
    model = models("llama")
    config = GenerationConfig(max_new_tokens=7, temperature=0.8, seed=3)
    with Engine(model) as engine:
        assert engine.submit("Once", config=config).finish(WAIT).text == model.generate("Once", config=config).text
        with pytest.raises(RequestError, match="there is no option max_tokens"):
            engine.submit("Once", max_tokens=3)
        with pytest.raises(RequestError, match="the prompt is empty"):
            engine.submit([])


def test_an_offline_engine_runs_nothing_until_somebody_reads(models):
    model = models("llama")
    alone = [model.generate(prompt, max_new_tokens=9 + 4 * place) for place, prompt in enumerate(PROMPTS)]
    engine = OfflineEngine(model, max_rows=2)
    streams = [engine.submit(prompt, max_new_tokens=9 + 4 * place) for place, prompt in enumerate(PROMPTS)]
    assert engine.statistics().steps == 0 and engine.statistics().waiting == len(PROMPTS)
    assert "".join(streams[1]) == alone[1].text
    assert [stream.finish().token_ids for stream in streams] == [each.token_ids for each in alone]
    assert engine.statistics().finished == len(PROMPTS)


def test_an_offline_engine_ends_only_the_request_that_fails(models):
    model, threads = models("llama"), threading.active_count()
    wanted = model.generate(PROMPTS[0], max_new_tokens=20)
    engine = OfflineEngine(model, max_rows=3)
    good = engine.submit(PROMPTS[0], max_new_tokens=20)
    broken = engine.submit(PROMPTS[1], logits_processors=[failing])
    cancelled = engine.submit(PROMPTS[2], max_new_tokens=50)
    first = next(cancelled.events())
    cancelled.cancel()
    assert threading.active_count() == threads
    assert good.finish().token_ids == wanted.token_ids
    with pytest.raises(ZeroDivisionError):
        broken.finish()
    result = cancelled.finish()
    assert (result.finish_reason, result.token_ids) == ("cancelled", [first.token_id]) and list(cancelled) == []
    with pytest.raises(RequestError, match="an engine runs a model that `load` returned, and str is none"):
        OfflineEngine("tiny-llama")
