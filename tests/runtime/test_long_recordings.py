"""Recordings of any length have the segments, times and tokens that Whisper of transformers gives them.

The model hears one second at a time, so that 3.17 s are to it what 95 s are to Whisper.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from speech_model import END, IDS, START, VOCABULARY, speech_model
from speech_model import SAMPLE_OPTIONS as OPTIONS
from speech_model import tones as sound
from transformers import WhisperFeatureExtractor

from edgeformer.errors import RequestError
from edgeformer.runtime import SpeechConfig, load
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs
from edgeformer.runtime.media.sound.audio import HOP, SAMPLE_RATE, log_mel_whole
from edgeformer.runtime.tasks.speech.recording import Recording

EXTRACTOR = WhisperFeatureExtractor(feature_size=8, chunk_length=1)


@pytest.fixture(scope="module")
def whisper(make_model, tmp_path_factory):
    return speech_model(make_model, tmp_path_factory.mktemp("speech"))


def features(samples):
    """The spectrogram that transformers' pipeline gives a recording."""
    whole = {"padding": "longest", "truncation": False} if len(samples) > SAMPLE_RATE else {}
    return EXTRACTOR(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt", **whole).input_features


def of_transformers(whisper, samples, **options):
    """The segments that transformers finds, but for those without a word."""
    with torch.no_grad():
        output = whisper.theirs.generate(
            features(samples), task="transcribe", return_timestamps=True, return_segments=True, **OPTIONS | options
        )
    found = [(float(each["start"]), float(each["end"]), each["tokens"].tolist()) for each in output["segments"][0]]
    return [each for each in found if any(token < END for token in each[2])]


def ours(whisper, samples, language="en", **speech):
    return whisper.ours.transcript(samples, language, speech=SpeechConfig(timestamps=True, **speech), **OPTIONS)


def assert_alike(segments, expected):
    assert [segment.token_ids for segment in segments] == [tokens for _, _, tokens in expected]
    times = [(segment.start, segment.end) for segment in segments]
    np.testing.assert_allclose(times, [each[:2] for each in expected], rtol=0, atol=1e-6)


RECORDINGS = {
    "silence": np.zeros(20_000, np.float32),
    "shorter than a window": sound(0, 0.4),
    "a window": sound(1, 1.0),
    "a sample more": sound(1, 1.0 + 1 / SAMPLE_RATE),
    "a frame more": sound(1, 1.01),
    "3.17 windows": sound(2, 3.17),
}


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("name", RECORDINGS)
def test_segments_are_those_of_transformers(whisper, name, continues):
    samples = RECORDINGS[name]
    expected = of_transformers(whisper, samples, language="en", condition_on_prev_tokens=continues)
    found = ours(whisper, samples, condition_on_prev_tokens=continues)
    assert_alike(found.segments, expected)
    words = [token for _, _, tokens in expected for token in tokens if token < END]
    assert found.text == " ".join(f"w{token}" for token in words) and words
    assert (found.language, found.task, found.duration) == ("en", "transcribe", len(samples) / SAMPLE_RATE)


@pytest.mark.parametrize(
    ("continues", "kind"), [(False, "first-segment"), (True, "first-segment"), (True, "all-segments")]
)
def test_a_prompt_stands_before_the_windows_as_in_transformers(whisper, continues, kind):
    samples, prompt = RECORDINGS["3.17 windows"], [IDS["startofprev"], 31, 44, 59]
    options = {"condition_on_prev_tokens": continues, "prompt_condition_type": kind}
    expected = of_transformers(whisper, samples, language="en", prompt_ids=torch.tensor(prompt), **options)
    assert_alike(ours(whisper, samples, prompt="w31 w44 w59 ", **options).segments, expected)
    seen, _ = runs_of(whisper, samples, prompt="w31 w44 w59", **options)
    # What is continued is cut at its beginning, and a prompt that is no part of every window's with it.
    stays = [tokens[:4] == prompt for tokens, _ in seen]
    assert stays[0] and all(stays) == (kind == "all-segments" or not continues)
    # Negative control.
    assert ours(whisper, samples, condition_on_prev_tokens=continues).segments[0].token_ids != expected[0][2]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("w3 <|en|>", "the prompt spells a special token; it must be text."),
        ("w3 " * 32, "the prompt has 32 tokens, and the model takes 31. Shorten it."),
        (3, "prompt is 3"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(whisper, prompt, message):
    with pytest.raises(RequestError, match=message):
        ours(whisper, RECORDINGS["a window"], prompt=prompt)


def test_a_text_that_is_continued_becomes_another(whisper):
    # Negative control.
    texts = {ours(whisper, RECORDINGS["3.17 windows"], condition_on_prev_tokens=each).text for each in (False, True)}
    assert len(texts) == 2


def test_a_long_recording_has_times_by_itself_as_in_transformers(whisper):
    samples = RECORDINGS["3.17 windows"]
    alone = whisper.ours.transcript(samples, "en", **OPTIONS)
    assert alone == ours(whisper, samples)
    assert whisper.ours.transcribe(samples, "en", **OPTIONS) == alone.text
    short = whisper.ours.transcript(RECORDINGS["a window"], "en", **OPTIONS)
    [segment] = short.segments
    assert (segment.start, segment.end) == (0, 1) and segment.token_ids != ours(whisper, RECORDINGS["a window"])


def test_windows_without_times_follow_one_another(whisper):
    samples = RECORDINGS["3.17 windows"]
    found = whisper.ours.transcript(samples, "en", speech=SpeechConfig(timestamps=False), **OPTIONS)
    assert [(segment.start, segment.end) for segment in found.segments] == [(0, 1), (1, 2), (2, 3), (3, 3.17)]
    pieces = [samples[start : start + SAMPLE_RATE] for start in range(0, len(samples), SAMPLE_RATE)]
    assert found.text == " ".join(whisper.ours.transcribe(piece, "en", **OPTIONS) for piece in pieces)


def test_the_language_is_detected_and_reported(whisper):
    for seed in range(4):
        samples = sound(seed, 1.2)
        code = {IDS[code]: code for code in ("en", "de", "fr")}[
            int(whisper.theirs.detect_language(features(samples)[:, :, :100]))
        ]
        found = whisper.ours.transcript(samples, **OPTIONS)
        assert found.language == code
        assert_alike(found.segments, of_transformers(whisper, samples, language=code))


LOW = {"temperature": (0.0, 1e-4)}
"""So cold a draw is the likeliest token, in both libraries."""


@pytest.mark.parametrize("limit", [-9.0, -2.1, -1.9, 0.0])
def test_unlikely_texts_are_drawn_again_as_in_transformers(whisper, limit):
    samples, thresholds = RECORDINGS["3.17 windows"], {"logprob_threshold": limit, "no_speech_threshold": 1e-4}
    expected = of_transformers(whisper, samples, language="en", **LOW, **thresholds)
    found = ours(whisper, samples, fallback_temperatures=[1e-4], **thresholds)
    assert_alike(found.segments, expected)
    assert all(segment.avg_logprob >= limit or segment.no_speech_prob <= 1e-4 for segment in found.segments)


def runs_of(whisper, samples, **speech):
    """The prompts and temperatures of the runs that a transcription takes, and its segments."""
    config, seen = whisper.ours.generation_config.override(OPTIONS | {"seed": 1}), []
    runs = whisper.ours.transcription(samples, "en", "transcribe", SpeechConfig(timestamps=True, **speech), config)
    result = None
    while True:
        try:
            window = next(runs) if result is None else runs.send(result)
        except StopIteration as done:
            return seen, done.value.segments
        seen.append((window.prompt, window.config.temperature))
        result = whisper.ours.generate(
            window.source, prompt=window.prompt, config=window.config, logits_processors=window.processors
        )


def test_the_encoder_runs_once_for_each_window(whisper, monkeypatch):
    encoded, frames, encode, cut = [], set(), EncoderOutputs.run, Recording.window
    monkeypatch.setattr(EncoderOutputs, "run", lambda *args: encoded.append(args) or encode(*args))
    monkeypatch.setattr(Recording, "window", lambda self, frame: frames.add(frame) or cut(self, frame))

    def found():
        # The language is heard, the window drawn by beams, its silence asked for, and drawn again without beams.
        # A seed, for at any temperature above 0 two tokens of nearly one probability are drawn by chance.
        unlikely = {"logprob_threshold": 0.0, "no_speech_threshold": 1.0, "fallback_temperatures": [1e-4]}
        speech = SpeechConfig(timestamps=True, **unlikely)
        return whisper.ours.transcript(RECORDINGS["a window"], speech=speech, num_beams=3, seed=1, **OPTIONS)

    once = found()
    assert (len(encoded), once.segments[0].temperature) == (len(frames), 1e-4)
    # Another model hears the same window for itself.
    window, other = Recording(RECORDINGS["a window"], 8, 1, whole=True).window(0), load(whisper.path, "cpu", 1)
    del encoded[:]
    for model, count in ((whisper.ours, 1), (whisper.ours, 1), (other, 2)):
        model.generate(window, **OPTIONS)
        assert len(encoded) == count
    # Negative control: windows of which nothing is kept.
    for module in ("encoder_decoder", "seq2seq_requests"):
        monkeypatch.setattr(f"edgeformer.runtime.tasks.{module}.kept_by", lambda sources: None)
    del encoded[:]
    assert found() == once
    assert len(encoded) > 3 * len(frames)


@pytest.mark.parametrize("threshold", [{"compression_ratio_threshold": 0.1}, {"logprob_threshold": -0.001}])
def test_a_text_that_fails_at_all_temperatures_is_the_last(whisper, threshold):
    seen, segments = runs_of(whisper, RECORDINGS["a window"], fallback_temperatures=[0.2, 0.4], **threshold)
    assert [temperature for _, temperature in seen] == [0.0, 0.2, 0.4] * (len(seen) // 3)
    assert {segment.temperature for segment in segments} == {0.4}


@pytest.mark.parametrize("temperature", [0.4, 0.5])
def test_what_was_drawn_hot_is_not_continued(whisper, temperature):
    options = {"condition_on_prev_tokens": True, "compression_ratio_threshold": 0.1}
    seen, _ = runs_of(whisper, RECORDINGS["3.17 windows"], fallback_temperatures=[temperature], **options)
    behind = [prompt for prompt, _ in seen[2:]]
    assert behind and all((prompt[0] == IDS["startofprev"]) == (temperature < 0.5) for prompt in behind)


def test_figures_of_a_window_are_those_of_transformers(whisper):
    samples = RECORDINGS["a window"]
    with torch.no_grad():
        output = whisper.theirs.generate(
            features(samples), language="en", task="transcribe", return_timestamps=True, return_segments=True,
            logprob_threshold=-99.0, temperature=0.0, **OPTIONS,
        )  # fmt: skip
    result = output["segments"][0][0]["result"]
    tokens = result["sequences"][len([START, IDS["en"], IDS["transcribe"]]) :]
    expected = float(whisper.theirs._retrieve_avg_logprobs(result["scores"], tokens, 0.0))
    segment = ours(whisper, samples).segments[0]
    assert segment.avg_logprob == pytest.approx(expected, abs=1e-5)
    assert segment.compression_ratio == whisper.theirs._retrieve_compression_ratio(tokens, VOCABULARY)


@pytest.mark.parametrize("seconds", [1.01, 3.17])
def test_a_spectrogram_equals_that_of_transformers(seconds):
    samples = sound(5, seconds)
    expected = features(samples)[0].numpy()
    np.testing.assert_allclose(log_mel_whole(samples, 8), expected, rtol=0, atol=2e-4)
    recording = Recording(samples, 8, 1, whole=True)
    assert recording.frames == expected.shape[1] == len(samples) // HOP
    assert not recording.window(recording.frames - 1).features[:, 1:].any(), "behind the end is 0, as in transformers"


def test_a_recording_of_90_seconds_is_transformed_in_blocks(monkeypatch):
    samples = np.random.default_rng(1).standard_normal(95 * SAMPLE_RATE).astype(np.float32)
    whole = log_mel_whole(samples, 80)
    monkeypatch.setattr("edgeformer.runtime.media.sound.audio._BLOCK", 10**9)
    np.testing.assert_allclose(whole, log_mel_whole(samples, 80), rtol=0, atol=1e-6)


def test_options_that_do_not_fit_are_refused_by_name(whisper):
    with pytest.raises(RequestError, match="^there is no sound: the array of samples is empty."):
        whisper.ours.transcript(np.zeros(0, np.float32))
    for speech, message in (
        (SpeechConfig(no_speech_threshold=0.6), "^no_speech_threshold says .*; it needs logprob_threshold.$"),
        ({"timestamps": True}, "^speech is .*; it must be a SpeechConfig, or None.$"),
    ):
        with pytest.raises(RequestError, match=message):
            whisper.ours.transcript(RECORDINGS["a window"], "en", speech=speech)
    with pytest.raises(RequestError, match="^stop texts do not work with times of segments; use timestamps=False.$"):
        whisper.ours.transcript(RECORDINGS["a window"], "en", stop="w3", speech=SpeechConfig(timestamps=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamps": 1}, "timestamps is 1 .int.; it must be True or False."),
        ({"fallback_temperatures": 0.2}, "fallback_temperatures is 0.2 .float.; it must be a list of numbers above 0."),
        ({"fallback_temperatures": [0.0]}, r"fallback_temperatures is \[0.0\]; each must be above 0."),
        (
            {"prompt_condition_type": "all"},
            "prompt_condition_type is 'all' .str.; it must be one of first-segment, all-seg",
        ),
        ({"fallback_temperatures": ["x"]}, "fallback_temperatures is 'x' .str.; it must be a number."),
        ({"logprob_threshold": float("nan")}, "logprob_threshold is nan; it must be finite, or None."),
        ({"compression_ratio_threshold": "2"}, "compression_ratio_threshold is '2' .str.; it must be a number."),
    ],
)
def test_values_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(RequestError, match=message):
        SpeechConfig(**options)


def test_a_model_without_times_writes_none(whisper, monkeypatch):
    kept = {name: value for name, value in whisper.ours.manifest.generation.items() if name != "no_timestamps_token_id"}
    monkeypatch.setattr(whisper.ours, "manifest", replace(whisper.ours.manifest, generation=kept))
    with pytest.raises(RequestError, match="^this model writes no times: its generation_config.json names no tokens"):
        ours(whisper, RECORDINGS["a window"])
