"""/v1/audio/transcriptions through OpenAI's client: recordings become what `transcribe` makes of them."""

import io
import json
import wave

import httpx2
import numpy as np
import openai
import pytest
import soundfile
import tokenizers
from running_server import running
from speech_model import speech_model

from edgeformer.export import export_model
from edgeformer.runtime import SpeechConfig, load
from edgeformer.runtime.media.sound.audio import SAMPLE_RATE
from edgeformer.runtime.tasks.speech import subtitles
from edgeformer.server.endpoints import transcriptions as server_transcriptions

WORDS = 100
NAMES = ["endoftext", "startoftranscript", "en", "de", "fr", "translate", "transcribe", "notimestamps"]
IDS = {name: WORDS + place for place, name in enumerate(NAMES)}
END, START = IDS["endoftext"], IDS["startoftranscript"]
SIZES = {
    "vocab_size": WORDS + len(NAMES), "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "num_mel_bins": 8, "max_source_positions": 50, "max_target_positions": 32,
}  # fmt: skip
TOKENS = {"decoder_start_token_id": START, "bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
GENERATION = TOKENS | {
    "max_length": 16,
    "suppress_tokens": [1, 2, *range(START, WORDS + len(NAMES))],
    "no_repeat_ngram_size": 2,
    "no_timestamps_token_id": IDS["notimestamps"],
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": IDS[code] for code in ("en", "de", "fr")},
    "task_to_id": {task: IDS[task] for task in ("translate", "transcribe")},
}


@pytest.fixture(scope="module")
def whisper(make_model, tmp_path_factory):
    """A random speech model that hears one second at a time."""
    folder = make_model("whisper", 11, auto="AutoModelForSpeechSeq2Seq", **SIZES, **TOKENS)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    vocabulary = {f"w{token}": token for token in range(WORDS)} | {f"<|{name}|>": IDS[name] for name in NAMES}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([f"<|{name}|>" for name in NAMES])
    backend.save(str(folder / "tokenizer.json"))
    return export_model(folder, tmp_path_factory.mktemp("bundles") / "whisper", verify=None).path


@pytest.fixture(scope="module")
def server(whisper, tiny_llama_bundle):
    with running([whisper, tiny_llama_bundle]) as server:
        yield server


@pytest.fixture(scope="module")
def create(server):
    with server.openai() as client:
        yield client.audio.transcriptions.create


@pytest.fixture(scope="module")
def translate(server):
    with server.openai() as client:
        yield client.audio.translations.create


def recording(path, seconds, seed=0):
    """Write a WAV file of tones that come and go."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    samples = (np.sin(random.uniform(100, 6000, (4, 1)) * 2 * np.pi * time) * np.sin(3 * time)).mean(0)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    path.write_bytes(content.getvalue())
    return path


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of OpenAI's client: its route of translations
@pytest.mark.parametrize("language", ["de", None])
def test_a_recording_of_windows_is_what_transcribe_returns(create, translate, whisper, tmp_path, language):
    model = load(whisper, "cpu", 1)
    texts = set()
    for seed, seconds in enumerate((0.7, 3.2)):
        file = recording(tmp_path / "a.wav", seconds, seed)
        options = {} if language is None else {"language": language}
        answer = create(model="whisper", file=file, **options)
        assert answer.text == model.transcribe(file, language, num_beams=1)
        assert translate(model="whisper", file=file).text == model.transcribe(file, None, "translate", num_beams=1)
        texts.add(answer.text)
    assert len(texts) == 2 and all(len(text) > 10 for text in texts)


def test_flac_is_transcribed_as_wav_is_and_its_length_is_bounded(create, tmp_path, monkeypatch):
    file = recording(tmp_path / "a.wav", 2.5)
    samples, rate = soundfile.read(file, dtype="int16")
    soundfile.write(tmp_path / "a.flac", samples, rate)
    assert create(model="whisper", file=tmp_path / "a.flac").text == create(model="whisper", file=file).text
    monkeypatch.setattr(server_transcriptions, "SAMPLES_PER_BYTE", 0)
    with pytest.raises(openai.BadRequestError, match="a.flac holds more than 0 samples"):
        create(model="whisper", file=tmp_path / "a.flac")


def test_formats_are_a_text_and_what_is_known_of_it(create, tmp_path):
    file = recording(tmp_path / "a.wav", 2.5)
    plain = create(model="whisper", file=file).text
    assert create(model="whisper", file=file, response_format="text") == plain + "\n"
    verbose = create(model="whisper", file=file, response_format="verbose_json", language="fr")
    assert (verbose.language, verbose.duration, bool(verbose.text)) == ("fr", 2.5, True)
    assert create(model="whisper", file=file, response_format="verbose_json").language in ("en", "de", "fr")


def test_segments_have_the_times_that_the_model_writes(make_model, tmp_path):
    model = speech_model(make_model, tmp_path)
    file = recording(tmp_path / "a.wav", 2.5)
    expected = model.ours.transcript(file, "en", speech=SpeechConfig(timestamps=True))
    with running([model.path]) as server, server.openai() as client:

        def create(**options):
            return client.audio.transcriptions.create(model="whisper", file=file, language="en", **options)

        found = create(response_format="verbose_json")
        assert [(each.start, each.end, each.text, each.tokens) for each in found.segments] == [
            (each.start, each.end, each.text, each.token_ids) for each in expected.segments
        ]
        assert found.text == expected.text == create().text
        for form in ("srt", "vtt"):
            assert create(response_format=form) == subtitles(expected.segments, form)


def test_words_and_a_prompt_are_those_of_transcript(make_model, tmp_path):
    model = speech_model(make_model, tmp_path, alignment_heads=[[1, 3], [0, 2]])
    file = recording(tmp_path / "a.wav", 2.5)
    speech = SpeechConfig(word_timestamps=True, prompt="w31 w44")
    expected = model.ours.transcript(file, "en", speech=speech)
    words = [(word.text, word.start, word.end) for segment in expected.segments for word in segment.words]
    with running([model.path]) as server, server.openai() as client:

        def create(*granularities, prompt="w31 w44"):
            return client.audio.transcriptions.create(
                model="whisper", file=file, language="en", response_format="verbose_json", prompt=prompt,
                timestamp_granularities=granularities,
            )  # fmt: skip

        for found in (create("word"), create("word", "segment")):
            assert [(word.word, word.start, word.end) for word in found.words] == words and words
            assert found.text == expected.text
        assert [each.text for each in found.segments] == [each.text for each in expected.segments]
        assert create("word").segments is None and create("segment").words is None
        assert create("word", prompt="").text != expected.text


REFUSED = [
    ({"model": "tiny-llama"}, "model", "it answers at /v1/chat/completions"),
    ({"language": "xx"}, "language", "this model has no language 'xx'; it has de, en, fr"),
    ({"response_format": "srt"}, "response_format", "this model writes no times; it must be json, text or verbose_"),
    ({"response_format": "ass"}, "response_format", "must be one of json, text, srt, verbose_json, vtt"),
    ({"timestamp_granularities": ["word"]}, "timestamp_granularities[]", "response_format must be verbose_json"),
    (
        {"timestamp_granularities": ["word"], "response_format": "verbose_json"}, "timestamp_granularities[]",
        "this bundle has no alignment graph",
    ),
    ({"timestamp_granularities": ["letter"]}, "timestamp_granularities[]", "has 'letter'; it may have word and segm"),
    ({"temperature": 9}, "temperature", "it must be 0 to 2"),
    ({"prompt": "<|en|>"}, "prompt", "the prompt spells a special token"),
    ({"prompt": "w3 " * 20}, "prompt", "the prompt has 20 tokens, and the model takes 15"),
    ({"extra_body": {"beams": 3}}, "beams", "is no field of this request"),
    ({"file": ("a.wav", b"no sound")}, "file", "a.wav is not a sound file of WAV"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "param", "message"), REFUSED)
def test_what_cannot_be_transcribed_is_refused_by_name(create, tmp_path, change, param, message):
    with pytest.raises(openai.BadRequestError) as caught:
        create(**{"model": "whisper", "file": recording(tmp_path / "a.wav", 0.5)} | change)
    assert (caught.value.param, message in caught.value.body["message"]) == (param, True), caught.value.body


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=x"])
def test_what_is_no_form_is_refused(server, kind):
    url = f"{server.url}/v1/audio/transcriptions"
    answer = httpx2.post(url, content=b"{}", headers={"content-type": kind}, timeout=60)
    assert answer.status_code == 400, answer.text


def test_a_speech_model_answers_nothing_else(server):
    answer = server.post("/v1/completions", {"model": "whisper", "prompt": "Once"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "wrong_model")
    assert "/v1/audio/transcriptions" in answer.json()["error"]["message"]
