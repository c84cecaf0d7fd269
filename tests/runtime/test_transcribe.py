"""Recordings become what Whisper of transformers makes of the same spectrogram.

The model hears one second at a time, so that a few seconds are a long recording.
"""

import json
import wave
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from speech_model import END, LAYERS, START, TOKENS, WORDS, write_tokenizer

from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.runtime import load
from edgeformer.runtime.media.sound.audio import SAMPLE_RATE, log_mel

NAMES = ["endoftext", "startoftranscript", "en", "de", "fr", "translate", "transcribe", "notimestamps"]
IDS = {name: WORDS + place for place, name in enumerate(NAMES)}
SILENT = IDS["notimestamps"]
VOCABULARY = WORDS + len(NAMES)
SIZES = LAYERS | {"vocab_size": VOCABULARY, "max_target_positions": 32}
GENERATION = TOKENS | {
    "max_length": 32,
    "suppress_tokens": [1, 2, 7, 8, 9, *range(START, VOCABULARY)],
    "begin_suppress_tokens": [5, END],
    "no_timestamps_token_id": SILENT,
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": IDS[code] for code in ("en", "de", "fr")},
    "task_to_id": {task: IDS[task] for task in ("translate", "transcribe")},
}
OPTIONS = {"no_repeat_ngram_size": 2}
"""A random model would say one word forever."""


@pytest.fixture(scope="module")
def whisper(make_model, tmp_path_factory):
    """The same model as a bundle (`ours`) and in transformers (`theirs`)."""
    folder = make_model("whisper", 11, auto="AutoModelForSpeechSeq2Seq", **SIZES, **TOKENS)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    write_tokenizer(folder, NAMES)
    bundle = export_model(folder, tmp_path_factory.mktemp("bundles") / "whisper", verify=None).path
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    return SimpleNamespace(ours=load(bundle), theirs=theirs)


def sound(seed, seconds=1.0):
    """A few tones that come and go, unlike those of other seeds."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    tones = random.uniform(100, 6000, (4, 1)) * 2 * np.pi * time
    loudness = np.sin(random.uniform(1, 8, (4, 1)) * time + random.uniform(0, 6, (4, 1))) ** 2
    return (np.sin(tones) * loudness).mean(0).astype(np.float32)


SOUNDS = [sound(seed) for seed in range(12)]


def features(samples):
    return torch.from_numpy(log_mel(samples, 8, 1))[None]


def heard(model, samples):
    """The code of the language that transformers hears."""
    return NAMES[int(model.detect_language(features(samples))) - WORDS]


def of_transformers(model, samples, **options):
    """The words that transformers writes, as ids."""
    with torch.no_grad():
        output = model.generate(features(samples), **OPTIONS | options)
    return [token for token in output[0].tolist() if token < WORDS]


def text_of(ids):
    return " ".join(f"w{token}" for token in ids)


@pytest.mark.parametrize("task", ["transcribe", "translate"])
@pytest.mark.parametrize("language", ["en", "de", "fr", None])
def test_a_recording_is_transcribed_as_by_transformers(whisper, language, task):
    for samples in SOUNDS[:4]:
        expected = of_transformers(whisper.theirs, samples, language=language, task=task, max_new_tokens=12)
        assert len(expected) > 3
        found = whisper.ours.transcribe(samples, language, task, max_new_tokens=12, **OPTIONS)
        assert found == text_of(expected)


def test_language_and_task_matter(whisper):
    # Negative control.
    asked = [(language, task) for language in ("en", "de", "fr") for task in ("transcribe", "translate")]
    texts = {whisper.ours.transcribe(SOUNDS[0], *each, **OPTIONS) for each in asked}
    assert len(texts) == len(asked)
    assert {heard(whisper.theirs, samples) for samples in SOUNDS} == {"en", "de", "fr"}


def test_the_language_is_that_which_transformers_hears(whisper):
    for samples in SOUNDS:
        language = heard(whisper.theirs, samples)
        assert whisper.ours.transcribe(samples, **OPTIONS) == whisper.ours.transcribe(samples, language, **OPTIONS)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"max_new_tokens": 5}, {"suppress_tokens": []}], ids=str)
@pytest.mark.parametrize("prompt", [None, [START, IDS["de"], IDS["transcribe"], SILENT]], ids=str)
def test_ids_are_those_of_transformers(whisper, options, prompt):
    batch = SOUNDS[:3]
    inputs = {"decoder_input_ids": torch.tensor([prompt or [START]] * len(batch))}
    # Whisper's own generate would begin as it likes.
    generate, options = transformers.GenerationMixin.generate, OPTIONS | options
    with torch.no_grad():
        stack = torch.cat([features(samples) for samples in batch])
        output = generate(whisper.theirs, input_features=stack, **inputs, **options)
    rows = whisper.ours.generate(batch, prompt=prompt, **options)
    for row, theirs in zip(rows, output[:, len(prompt or [0]) :].tolist(), strict=True):
        assert row.token_ids == theirs[: len(row.token_ids)]
        assert set(theirs[len(row.token_ids) :]) <= {END}
        assert row.text == text_of(token for token in row.token_ids if token < WORDS)
    alone = [whisper.ours.generate(samples, prompt=prompt, **options) for samples in batch]
    assert [row.token_ids for row in alone] == [row.token_ids for row in rows]


def test_what_may_not_be_said_first_may_be_said_later(whisper):
    # Begin-suppressed tokens are those behind the whole prompt, whatever its length.
    prompt = [START, IDS["en"], IDS["transcribe"], SILENT]
    free = whisper.ours.generate(SOUNDS[0], prompt=prompt, begin_suppress_tokens=[], max_new_tokens=8)
    first = free.token_ids[0]
    later = whisper.ours.generate(SOUNDS[0], prompt=prompt, begin_suppress_tokens=[first], max_new_tokens=8)
    assert later.token_ids[0] != first


@pytest.fixture
def english(whisper, monkeypatch):
    """The model as if it were of English alone."""
    many = ("lang_to_id", "task_to_id")
    kept = {name: value for name, value in whisper.ours.manifest.generation.items() if name not in many}
    monkeypatch.setattr(whisper.ours, "manifest", replace(whisper.ours.manifest, generation=kept))
    config = transformers.GenerationConfig(**{name: value for name, value in GENERATION.items() if name not in many})
    config.is_multilingual = False
    monkeypatch.setattr(whisper.theirs, "generation_config", config)
    return whisper


def test_a_model_of_english_is_told_no_language(english):
    for samples in SOUNDS[:3]:
        expected = text_of(of_transformers(english.theirs, samples, max_new_tokens=12))
        assert english.ours.transcribe(samples, max_new_tokens=12, **OPTIONS) == expected
        assert english.ours.transcribe(samples, "en", max_new_tokens=12, **OPTIONS) == expected
    for language, task in (("de", "transcribe"), (None, "translate")):
        with pytest.raises(RequestError, match="^this model transcribes English, and nothing else.$"):
            english.ours.transcribe(SOUNDS[0], language, task)


class Counted:
    """A session that counts its runs."""

    def __init__(self, session):
        self._session = session
        self.runs = 0

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, binding):
        self.runs += 1
        self._session.run_with_iobinding(binding)


def test_a_long_recording_is_heard_window_after_window(whisper, monkeypatch):
    windows = [SOUNDS[0], SOUNDS[1], SOUNDS[2][: SAMPLE_RATE // 3]]
    encoder = Counted(whisper.ours._encoder)
    monkeypatch.setattr(whisper.ours, "_encoder", encoder)
    whole = whisper.ours.transcribe(np.concatenate(windows), "de", **OPTIONS)
    assert encoder.runs == 3
    assert whole == " ".join(whisper.ours.transcribe(window, "de", **OPTIONS) for window in windows)


def test_a_long_recording_has_its_first_windows_language(whisper, monkeypatch):
    # As in transformers, whose detect_language hears num_segment_frames.
    first = SOUNDS[0]
    other = next(samples for samples in SOUNDS if heard(whisper.theirs, samples) != heard(whisper.theirs, first))
    language = heard(whisper.theirs, first)
    expected = [whisper.ours.transcribe(samples, language, **OPTIONS) for samples in (first, other)]
    encoder = Counted(whisper.ours._encoder)
    monkeypatch.setattr(whisper.ours, "_encoder", encoder)
    assert whisper.ours.transcribe(np.concatenate([first, other]), **OPTIONS) == " ".join(expected)
    assert encoder.runs == 2, "once for each window; the first one also tells the language"


def test_windows_in_which_nothing_is_said_leave_no_trace(whisper):
    options = {"suppress_tokens": range(WORDS), "begin_suppress_tokens": []}
    assert whisper.ours.transcribe(sound(0, 2.5), "en", **options) == ""


def test_a_file_is_its_samples(whisper, tmp_path):
    integers = (SOUNDS[3] * 20000).astype(np.int16)
    path = tmp_path / "speech.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes(integers.astype("<i2").tobytes())
    samples = integers.astype(np.float32) / 32768
    expected = whisper.ours.transcribe(samples, **OPTIONS)
    for recording in (path, str(path), samples.astype(np.float64), samples.tolist()):
        assert whisper.ours.transcribe(recording, **OPTIONS) == expected
    ids = whisper.ours.generate(samples, **OPTIONS).token_ids
    assert whisper.ours.generate(path, **OPTIONS).token_ids == ids
    assert [row.token_ids for row in whisper.ours.generate([str(path), samples], **OPTIONS)] == [ids, ids]
    stream = whisper.ours.stream(path, **OPTIONS)
    assert "".join(stream) == stream.finish().text
    assert stream.finish().token_ids == ids


@pytest.mark.parametrize(
    ("recording", "options", "message"),
    [
        (SOUNDS[0], {"language": "xx"}, "^this model has no language 'xx'; it has de, en, fr.$"),
        (SOUNDS[0], {"language": "english"}, "^this model has no language 'english'; it has de, en, fr.$"),
        (SOUNDS[0], {"task": "sing"}, "^task is 'sing'; it must be one of transcribe, translate.$"),
        (SOUNDS[0], {"num_return_sequences": 2, "num_beams": 2}, "^num_return_sequences is 2, but translate and tran"),
        (SOUNDS[0], {"temprature": 1}, "^there is no option temprature"),
        (SOUNDS[0], {"max_new_tokens": 29}, "^max_new_tokens is 29; .* behind a prompt of 4, at most 28"),
        (np.zeros(0, np.float32), {}, "^there is no sound: the array of samples is empty."),
        (np.zeros((2, 9), np.float32), {}, r"^the samples have shape \[2, 9\]; they must be mono"),
        ((SOUNDS[0] * 9999).astype(np.int16), {}, "^the samples are int16; they must be floats .* by 32768."),
        (np.full(9, np.nan, np.float32), {}, "^some samples are NaN or infinite"),
        ("nowhere.wav", {}, "^nowhere.wav cannot be read: No such file"),
        ([], {}, "^there is no sound"),
    ],
    ids=lambda value: "" if isinstance(value, np.ndarray) else str(value)[:30],
)
def test_a_recording_that_cannot_be_transcribed_says_why(whisper, recording, options, message):
    with pytest.raises(RequestError, match=message):
        whisper.ours.transcribe(recording, **options)


def test_sources_of_a_model_that_hears_are_recordings(whisper):
    assert whisper.ours.is_speech
    with pytest.raises(RequestError, match="^there is no source in the batch; give at least one."):
        whisper.ours.generate([])
    with pytest.raises(RequestError, match="^a stream is of one source; for several, use generate."):
        whisper.ours.stream(SOUNDS[:2])
    with pytest.raises(RequestError, match="^this is a speech model, which translates no text. Use transcribe, "):
        whisper.ours.translate("w3")


def test_words_need_a_tokenizer(whisper, monkeypatch):
    monkeypatch.setattr(whisper.ours, "tokenizer", None)
    assert whisper.ours.generate(SOUNDS[0], max_new_tokens=3).text is None
    with pytest.raises(RequestError, match=r"has no tokenizer\.json"):
        whisper.ours.transcribe(SOUNDS[0])
