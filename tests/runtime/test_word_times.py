"""Times of tokens are those of Whisper in transformers, and words those of its pipeline.

The model hears one second at a time, so that 3.17 s are to it what 95 s are to Whisper.
"""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from slow_rows import slow_unless
from speech_model import END, SAMPLE_OPTIONS, START, VOCABULARY, speech_model
from speech_model import tones as sound
from transformers import WhisperFeatureExtractor
from transformers.models.whisper import generation_whisper
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from edgeformer.errors import BundleError, RequestError
from edgeformer.export import export_model
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import SpeechConfig, load
from edgeformer.runtime.media.sound.audio import SAMPLE_RATE, Spectrogram, log_mel
from edgeformer.runtime.tasks.speech.words import _positions, token_times, words_of

EXTRACTOR = WhisperFeatureExtractor(feature_size=8, chunk_length=1)
HEADS = [[1, 3], [0, 2], [1, 0]]
RECORDINGS = {
    "shorter than a window": sound(0, 0.4),
    "a window": sound(1, 1.0),
    "a frame more": sound(1, 1.01),
    "3.17 windows": sound(2, 3.17),
}


@pytest.fixture(scope="module")
def whisper(make_model, tmp_path_factory):
    return speech_model(make_model, tmp_path_factory.mktemp("speech"), alignment_heads=HEADS)


def of_transformers(whisper, samples, timestamps=True, **options):
    """Tokens and their times, segment by segment, as the pipeline asks for them."""
    whole = {"padding": "longest", "truncation": False} if len(samples) > SAMPLE_RATE else {}
    heard = EXTRACTOR(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt", return_attention_mask=True, **whole)
    with torch.no_grad():
        output = whisper.theirs.generate(
            heard.input_features, attention_mask=heard.attention_mask, language="en", task="transcribe",
            return_timestamps=timestamps, return_token_timestamps=True, return_segments=True,
            **SAMPLE_OPTIONS | options,
        )  # fmt: skip
    found = [(each["tokens"].tolist(), each["token_timestamps"].tolist()) for each in output["segments"][0]]
    return [each for each in found if any(token < END for token in each[0])]


def ours(whisper, samples, options=None, **speech):
    speech = SpeechConfig(word_timestamps=True, **speech)
    return whisper.ours.transcript(samples, "en", speech=speech, **SAMPLE_OPTIONS | (options or {}))


TIMED = [(name, options) for name in RECORDINGS for options in ({}, {"num_beams": 3}, {"max_new_tokens": 6})]


@pytest.mark.parametrize(("name", "options"), slow_unless(TIMED[::2], TIMED), ids=str)
def test_times_of_tokens_are_those_of_transformers(whisper, name, options):
    expected = of_transformers(whisper, RECORDINGS[name], **options)
    segments = ours(whisper, RECORDINGS[name], options).segments
    assert [segment.token_ids for segment in segments] == [tokens for tokens, _ in expected] and expected
    for segment, (_, times) in zip(segments, expected, strict=True):
        np.testing.assert_allclose(segment.token_times, times, rtol=0, atol=1e-5)


OTHERS = [{"ops": "standard"}, {"ops": "standard", "cache": "static"}, {"ops": "portable"}]


@pytest.mark.parametrize("options", slow_unless(OTHERS[-1:], OTHERS), ids=str)
def test_times_are_the_same_in_every_op_set(whisper, tmp_path, options):
    path = export_model(whisper.checkpoint, tmp_path / "bundle", verify=None, **options).path
    other = SimpleNamespace(ours=load(path, "cpu", 1))
    samples = RECORDINGS["3.17 windows"]
    found = [(segment.token_ids, segment.token_times) for segment in ours(other, samples).segments]
    assert found == [(segment.token_ids, segment.token_times) for segment in ours(whisper, samples).segments]


@pytest.mark.parametrize("kind", ["first-segment", "all-segments"])
def test_prompts_have_no_times_as_in_transformers(whisper, kind):
    samples, prompt = RECORDINGS["3.17 windows"], [107, 31, 44, 59]
    options = {"condition_on_prev_tokens": True, "prompt_condition_type": kind}
    expected = of_transformers(whisper, samples, prompt_ids=torch.tensor(prompt), **options)
    for segment, (tokens, times) in zip(
        ours(whisper, samples, prompt="w31 w44 w59", **options).segments, expected, strict=True
    ):
        assert segment.token_ids == tokens
        np.testing.assert_allclose(segment.token_times, times, rtol=0, atol=1e-5)


def test_a_text_without_times_of_segments_has_words_with_times(whisper):
    silent = {"suppress_tokens": list(range(START, VOCABULARY))}  # a random model would write times all the same
    for name in ("shorter than a window", "a window"):
        [(tokens, times)] = of_transformers(whisper, RECORDINGS[name], timestamps=False, **silent)
        [segment] = ours(whisper, RECORDINGS[name], silent, timestamps=False).segments
        assert segment.token_ids == tokens
        np.testing.assert_allclose(segment.token_times, times, rtol=0, atol=1e-5)
    # Windows that follow one another begin at 1 s and 2 s.
    segments = ours(whisper, RECORDINGS["3.17 windows"], silent, timestamps=False).segments
    assert [math.floor(min(segment.token_times)) for segment in segments] == [0, 1, 2, 3]
    assert max(segments[-1].token_times) < 3.18, "nothing is spoken in the padding"


def test_times_depend_on_heads_and_on_the_filter(whisper, monkeypatch):
    # Negative control.
    samples = RECORDINGS["3.17 windows"]
    expected = [segment.token_times for segment in ours(whisper, samples).segments]
    assert len({time for times in expected for time in times}) > 10
    real = whisper.ours.cross_attentions
    monkeypatch.setattr(whisper.ours, "cross_attentions", lambda *arguments: real(*arguments)[:2])
    assert [segment.token_times for segment in ours(whisper, samples).segments] != expected
    weights = real(log_mel_window(samples), [101, 102, 106, 110, 3, 4, 5, 6])
    assert token_times(weights, 3) != token_times(weights, 7)


def log_mel_window(samples):
    return Spectrogram(log_mel(samples, 8, 1))


def test_words_are_where_their_tokens_are(whisper):
    found = ours(whisper, RECORDINGS["3.17 windows"])
    plain = whisper.ours.transcript(RECORDINGS["3.17 windows"], "en", **SAMPLE_OPTIONS)
    assert found.text == plain.text and all(segment.words is None for segment in plain.segments)
    for segment in found.segments:
        # The tokenizer of this model joins words without spaces, so that a segment is one word.
        [word] = segment.words
        text = [place for place, token in enumerate(segment.token_ids) if token < END]
        assert word.text.replace("w", " w").strip() == segment.text
        assert word.start == round(segment.token_times[text[0] - 1], 2)
        assert word.end == round(segment.token_times[text[-1]], 2)


# The parts, beside those of transformers


def matrices():
    for seed in range(60):
        random = np.random.default_rng(seed)
        shape = random.integers(1, 12), random.integers(1, 40)
        # Half of them have many ties.
        yield random.integers(-2, 3, shape).astype(np.float64) if seed % 2 else random.normal(size=shape)


def test_paths_are_those_of_transformers():
    for costs in matrices():
        rows, columns = generation_whisper._dynamic_time_warping(costs)
        jumps = np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)
        assert _positions(costs).tolist() == columns[jumps].tolist()


@pytest.mark.parametrize("width", [1, 3, 7])
def test_weights_become_the_times_of_transformers(width):
    for seed in range(20):
        random = np.random.default_rng(seed)
        rows, columns = random.integers(2, 12), random.integers(2, 40)
        scores = torch.from_numpy(random.normal(size=(1, 3, rows, columns)).astype(np.float32))
        weights = scores.softmax(-1)
        outputs = {"cross_attentions": [[weights]], "sequences": torch.zeros(1, rows + 1)}
        owner = SimpleNamespace(config=SimpleNamespace(decoder_layers=1, median_filter_width=width))
        expected = generation_whisper.WhisperGenerationMixin._extract_token_timestamps(
            owner, OutputsOfTransformers(outputs), [(0, 2), (0, 0)], num_input_ids=0
        )[0].tolist()
        found = token_times(weights[0, [2, 0]].numpy(), width)
        np.testing.assert_allclose(found + found[-1:], expected, rtol=0, atol=1e-6)


class OutputsOfTransformers(dict):
    __getattr__ = dict.__getitem__


def test_a_single_token_begins_with_the_window():
    # transformers, which divides by its deviation of 0, puts it 20 ms before the window.
    assert token_times(np.full((2, 1, 9), 1 / 9, np.float32), 7) == [0.0]


TEXTS = {
    "en": " \"Hello, world!\" he said (twice). It's 3.50 - isn't it? ¿Qué? naïve 🙂 …",
    "de": " Grüße, „schöne“ Welt: [ja] {nein}.",
    "ja": "こんにちは、世界。🙂",
    "th": "สวัสดี ครับ",
}


@pytest.fixture(scope="module")
def bytes_tokenizer():
    """A tokenizer of bytes, in which most characters of TEXTS are several tokens, and some words are one."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([" Hello he said twice world it", *TEXTS.values()], trainer)
    return backend


@pytest.mark.parametrize("language", TEXTS)
def test_words_are_those_of_the_pipeline_of_transformers(bytes_tokenizer, language):
    tokens = bytes_tokenizer.encode(TEXTS[language]).ids
    names = {"en": "english", "de": "german", "ja": "japanese", "th": "thai"}
    theirs = SimpleNamespace(
        decode=lambda ids, decode_with_timestamps: bytes_tokenizer.decode(ids), eos_token_id=9999, language=None
    )
    texts, _, places = _combine_tokens_into_words(theirs, tokens, names[language])
    times = [(place / 4, place / 4 + 0.25) for place in range(len(tokens))]
    found = words_of(bytes_tokenizer.decode, tokens, times, language)
    expected = [
        (text.strip(), times[each[0]][0], times[each[-1]][1])
        for text, each in zip(texts, places, strict=True)
        if text.strip()
    ]
    assert [(word.text, word.start, word.end) for word in found] == expected and len(found) > 3
    assert len(found) < len(tokens)


# Refusals


def test_a_model_without_heads_refuses_words(make_model, tmp_path):
    whisper = speech_model(make_model, tmp_path)
    with pytest.raises(RequestError, match=r"^this model has no times of words: its generation_config.json has no al"):
        ours(whisper, RECORDINGS["a window"])
    with pytest.raises(RequestError, match="^this bundle has no alignment graph; only speech models"):
        whisper.ours.cross_attentions(RECORDINGS["a window"], [101])


def test_an_older_bundle_refuses_words(whisper, tmp_path):
    folder = shutil.copytree(whisper.path, tmp_path / "older")
    manifest = json.loads((folder / "edgeformer.json").read_text())
    del manifest["graphs"]["alignment"]
    (folder / "edgeformer.json").write_text(json.dumps(manifest))
    older = SimpleNamespace(ours=load(folder, "cpu", 1))
    with pytest.raises(RequestError, match="^this bundle has no alignment graph, .* Export the model again"):
        ours(older, RECORDINGS["a window"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"median_filter_width": 4}, "AlignmentGraph.median_filter_width is 4; it must be a positive odd number"),
        ({"heads": []}, r"AlignmentGraph.heads is \(\); it must be at least one"),
        ({"file": "onnx/no.onnx"}, "is damaged: it does not list 'onnx/no.onnx'"),
    ],
)
def test_a_damaged_manifest_is_refused(whisper, tmp_path, change, message):
    manifest = json.loads((whisper.path / "edgeformer.json").read_text())
    manifest["graphs"]["alignment"] |= change
    (tmp_path / "edgeformer.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=message):
        Manifest.read(tmp_path)


def test_a_flag_is_a_flag():
    with pytest.raises(RequestError, match="word_timestamps is 'yes'"):
        SpeechConfig(word_timestamps="yes")
