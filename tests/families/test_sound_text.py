"""Families of sound and text: random models of transformers' own classes, in eager PyTorch and as bundles.

The oracle is transformers' module over the same checkpoint in float64, with the spectrograms of its feature extractor,
computed by its numpy path. Error: max |Δlogit| / max |logit|. The models are in `sound_text_rows.py`.
"""

import functools
import json
import shutil
import wave
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from slow_rows import slow_unless
from sound_text_rows import MARKS, MODELS, SPECIAL, save
from tower_models import error, exporter

from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.config import SoundTextConfig
from edgeformer.errors import ConfigError, ExportError, PromptLengthError, RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.importers import sounds
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.importers.pictures.placeholders import read_placeholder
from edgeformer.export.importers.sounds import compare_sounds, their_windows
from edgeformer.families import picture_text
from edgeformer.families.picture_text import seeing_names
from edgeformer.manifest.accounting import account
from edgeformer.models.pictures.projectors import StackedFrames
from edgeformer.models.sounds import SoundTower
from edgeformer.runtime import Engine, load
from edgeformer.runtime.media.sound import audio, recordings
from edgeformer.transformers_backend.float64 import computing_in_float64

LIMIT = 1e-5
CASES = [(family, name) for family, models in MODELS.items() for name in models]
FIRST = [(family, next(iter(models))) for family, models in MODELS.items()]
"""One model of each family, which is exported by default; the others are slow."""
VOXTRAL, QWEN = FIRST
PROMPT = "{0}{0} What is said in {0}"


def noise(seconds, salt=0):
    """Noise that becomes louder."""
    count = int(seconds * audio.SAMPLE_RATE)
    loud = np.random.default_rng(salt).standard_normal(count) * np.linspace(0.001, 0.3, count)
    return loud.astype(np.float32)


SOUNDS = [noise(0.9), noise(0.31, 1), noise(0.97, 2)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that returns a model by family and name, each made once."""

    @functools.cache
    def of(family, name):
        folder = tmp_path_factory.mktemp(family)
        return SimpleNamespace(folder=folder, module=save(family, name, folder))

    return of


@pytest.fixture(scope="module")
def bundles(models, tmp_path_factory):
    """Return a function that returns the folder of a model's bundle, each made once."""
    return exporter(models, tmp_path_factory)


def numpy_extractor(folder):
    """Return transformers' feature extractor, which computes in float64 without torch."""
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    extractor._torch_extract_fbank_features = extractor._np_extract_fbank_features
    return extractor


def theirs(model, family, prompt, heard, new_tokens=0):
    """Return the ids of a prompt with recordings, logits [S, V] of transformers' module, and what it writes.

    Voxtral's processor makes prompts by mistral-common alone, which writes a token in front of those of a recording.
    """
    tower = open_source(model.folder).config.tower
    found = [their_windows(numpy_extractor(model.folder), each, tower) for each in heard]
    inputs = {
        {"audio_values": "input_features"}.get(name, name): torch.from_numpy(
            np.concatenate([each[name] for each in found])
        )
        for name in (found[0] if found else ())
    }
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    if family == "qwen2_audio":
        processor = transformers.AutoProcessor.from_pretrained(model.folder)
        ids = processor(text=[prompt], audio=heard or None, sampling_rate=16_000, return_tensors="pt")["input_ids"]
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model.folder)
        states = model.module.config.audio_config
        states = states.max_source_positions * states.hidden_size // states.intermediate_size
        for each in found:
            whole = "[BEGIN_AUDIO]" + "[AUDIO_STATE]" * (states * len(each["audio_values"]))
            prompt = prompt.replace("[AUDIO]", whole, 1)
        ids = tokenizer(prompt.replace("[AUDIO_STATE]", "[AUDIO]"), return_tensors="pt")["input_ids"]
    mask = torch.ones_like(ids)
    with torch.no_grad(), computing_in_float64():
        logits = model.module(input_ids=ids, attention_mask=mask, **inputs).logits[0].numpy()
        written = None
        if new_tokens:
            written = model.module.generate(
                input_ids=ids, attention_mask=mask, **inputs, max_new_tokens=new_tokens, do_sample=False,
                eos_token_id=None,
            )[0, ids.shape[1] :].tolist()  # fmt: skip
    return ids[0].tolist(), logits, written


def test_every_family_that_hears_has_three_models():
    assert {family: len(models) >= 3 for family, models in MODELS.items()} == {"voxtral": True, "qwen2_audio": True}
    assert MODELS.keys() <= set(seeing_names())


@pytest.mark.parametrize(("family", "name"), slow_unless(FIRST, CASES))
def test_module_spectrograms_and_ids_are_those_of_transformers(models, family, name):
    source = open_source(models(family, name).folder)
    compared = compare_modules(source, source.weights())
    assert compared.reason is None and compared.difference < 1e-12
    placeholder = read_placeholder(source, source.config, source.folder)
    warned = compare_sounds(source, placeholder, source.folder)
    assert warned == () if family == "qwen2_audio" else "ids of its prompts were not compared" in warned[0]
    extractor, tower = numpy_extractor(source.folder), source.config.tower
    silence = np.zeros(3000, np.float32)
    for samples in (*sounds.noises(tower), silence, silence[:201] + 0.5):
        expected = their_windows(extractor, samples, tower)["audio_values"]
        ours = np.concatenate([each["audio_values"] for each in recordings.windows_of(samples, tower)])
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("family", "name"), slow_unless(FIRST, CASES))
def test_a_bundle_answers_about_sound_as_transformers(models, bundles, family, name):
    model, runtime = models(family, name), load(bundles(family, name), "cpu", 1)
    mark = MARKS[family]
    longest = noise(4.7 if family == "voxtral" else runtime.config.tower.frames / 100, 3)
    cases = [("What is said?", []), (f"{mark}a", [longest]), (f"a{mark}", [np.zeros(5000, np.float32)]),
             (f"{mark} b", [SOUNDS[1][:700]]), (PROMPT.format(mark), SOUNDS)]  # fmt: skip
    for prompt, heard in cases:
        ids, expected, _ = theirs(model, family, prompt, heard)
        assert (runtime.see(prompt, heard).shown if heard else runtime.encode(prompt)) == ids
        assert error(runtime.forward(prompt if heard else ids, sounds=heard), expected) <= LIMIT
    prompt = PROMPT.format(mark)
    written = theirs(model, family, prompt, SOUNDS, new_tokens=6)[2]
    options = {"max_new_tokens": 6, "ignore_eos": True}
    assert runtime.generate(prompt, sounds=SOUNDS, **options).token_ids == written
    batch = runtime.generate([prompt, "a", f"{mark} b"], sounds=[SOUNDS, [], SOUNDS[:1]], **options)
    alone = runtime.generate(f"{mark} b", sounds=SOUNDS[0], **options)
    assert [each.token_ids for each in (batch[0], batch[2])] == [written, alone.token_ids]
    seen = runtime.see(prompt, SOUNDS)
    whole = runtime.forward(prompt, sounds=SOUNDS)
    for chunk in (3, 64):
        decoder = runtime.new_decoder(1, len(seen.tokens))
        decoder.graph.pictures = seen.pictures
        assert error(decoder.prefill_all(0, seen.tokens, chunk=chunk), whole) <= LIMIT


TOKENS = {"voxtral": 375, "qwen2_audio": 750}
"""Tokens of 30 seconds."""


@pytest.mark.parametrize("family", MODELS)
def test_published_sizes_are_read(family):
    text = {} if family == "voxtral" else {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 156032,
    }  # fmt: skip
    config = transformers.CONFIG_MAPPING[family](text_config=text, audio_token_id=24)
    with torch.device("meta"):
        parameters = transformers.AutoModelForMultimodalLM.from_config(config).num_parameters()
    data = json.loads(json.dumps(config.to_dict()))
    read = picture_text.with_tower(data, *_text_of(data))[1]
    assert isinstance(read, SoundTextConfig)
    assert (account(read).parameters, read.picture_tokens) == (parameters, TOKENS[family])
    assert read.tokens_of(16_000 * 29, 160) == (1, 375 if family == "voxtral" else 725)


def _text_of(data):
    from edgeformer.families import read_model_config, text_config

    return read_model_config(text_config(data))


@pytest.fixture(scope="module")
def voxtral(bundles):
    return load(bundles(*VOXTRAL), "cpu", 1)


@pytest.fixture(scope="module")
def qwen(bundles):
    return load(bundles(*QWEN), "cpu", 1)


def write_wav(path, samples):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def test_a_chat_hears_where_its_parts_say(voxtral):
    spelled = [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "Is [AUDIO] loud?"}]}]
    options = {"max_new_tokens": 4, "ignore_eos": True}
    first = voxtral.chat(spelled, sounds=SOUNDS[:1], **options).finish()
    again = voxtral.chat(spelled, sounds=SOUNDS[0], **options).finish()
    other = voxtral.chat(spelled, sounds=SOUNDS[1:2], **options).finish()
    assert (again.token_ids, again.cached_tokens) == (first.token_ids, first.prompt_tokens - 1)
    assert other.cached_tokens < 8  # another recording is another prefix


def test_the_command_hears_files(bundles, tmp_path, qwen):
    path = write_wav(tmp_path / "a.wav", SOUNDS[0])
    line = ["run", str(bundles(*QWEN)), "--audio", str(path), "--max-new-tokens", "4", "--json"]

    def run(*more):
        result = CliRunner().invoke(cli, [*line, *more])
        return json.loads(result.stdout) if result.exit_code == 0 else result.output

    asked, mark = run("What is said?"), MARKS["qwen2_audio"]
    assert asked["prompt_tokens"] == run("--chat", "What is said?")["prompt_tokens"]
    expected = qwen.generate(f"{mark} a", sounds=[path.read_bytes()], max_new_tokens=4)
    assert run(f"{mark} a")["token_ids"] == expected.token_ids
    assert "--image: not for a bundle of this kind (audio-text-to-text)" in run("--image", str(path), "a")


def test_an_engine_hears_as_one_request_alone(voxtral):
    prompts = [("[AUDIO] a", SOUNDS[:1]), ("b [AUDIO][AUDIO]", SOUNDS[1:]), ("no sound", [])]
    options = {"max_new_tokens": 5, "ignore_eos": True}
    with Engine(voxtral) as engine:
        streams = [engine.submit(prompt, sounds=heard, **options) for prompt, heard in prompts]
        found = [stream.finish().token_ids for stream in streams]
    assert found == [voxtral.generate(prompt, sounds=heard, **options).token_ids for prompt, heard in prompts]


def test_windows_are_read_once_and_one_at_a_time(voxtral):
    long = noise(5.1, 7)
    voxtral.features.max_bytes = 1 << 20
    with patch.object(voxtral.tower_session, "run", wraps=voxtral.tower_session.run) as run:
        for _ in range(2):
            states = voxtral.sound_features(long)
    assert [call.args[1]["audio_values"].shape for call in run.call_args_list] == [(1, 16, 200)] * 3
    assert states.shape == (75, 40)


@pytest.mark.parametrize(
    ("prompt", "heard", "message"),
    [
        ("a [AUDIO]", (), "1 placeholder of recordings"),
        ("a", SOUNDS[:1], "no placeholders of recordings"),
        ("[AUDIO][AUDIO]", SOUNDS[:1], "2 placeholders of recordings .* where it is to be heard"),
        (["[AUDIO]", "a"], SOUNDS[:1], "a list of recordings for each of the 2 prompts"),
        ("[AUDIO]", 5, "must be a list of recordings"),
        ("[AUDIO]", [5], "the recording is 5"),
        ("[AUDIO]", ["/no/such/file"], "cannot be read"),
        ("[AUDIO]", [b"nothing"], "the recording is not a sound file"),
        ("[AUDIO]", [np.zeros(0, np.float32)], "empty"),
        ("[AUDIO]", [np.zeros((2, 9), np.float32)], "must be mono"),
        ("[AUDIO]", [np.zeros(9, np.int16)], "must be floats"),
        ("[AUDIO]", [np.array([np.nan], np.float32)], "NaN"),
    ],
)
def test_wrong_recordings_are_refused(voxtral, prompt, heard, message):
    with pytest.raises(RequestError, match=message):
        voxtral.generate(prompt, sounds=heard)


def test_lengths_and_other_media_are_refused(voxtral, qwen, tiny_llama_bundle):
    mark = MARKS["qwen2_audio"]
    with pytest.raises(RequestError, match="has 2.5 seconds, and this model hears 2 at most"):
        qwen.generate(mark, sounds=[noise(2.5)])
    with pytest.raises(RequestError, match="too short for a single token"):
        qwen.generate(mark, sounds=[np.zeros(320, np.float32)])
    assert qwen.sound_features(np.zeros(321, np.float32)).shape[0] == 1
    with pytest.raises(PromptLengthError, match="tokens with its recordings"):
        voxtral.generate("[AUDIO]", sounds=[noise(60)])
    with pytest.raises(RequestError, match="reads no pictures; leave images out"):
        voxtral.generate("[AUDIO]", images=[np.zeros((8, 8, 3), np.uint8)])
    with pytest.raises(RequestError, match="reads no recordings; leave sounds out"):
        load(tiny_llama_bundle, "cpu", 1).generate("a", sounds=SOUNDS)


@pytest.mark.parametrize(
    ("case", "file", "fields", "message"),
    [
        (VOXTRAL, "preprocessor_config.json", {"sampling_rate": 8000}, "sampling_rate = 8000"),
        (VOXTRAL, "preprocessor_config.json", {"chunk_length": 3}, "n_samples"),
        (VOXTRAL, "preprocessor_config.json", {"feature_size": 80}, "feature_size = 80"),
        (VOXTRAL, "preprocessor_config.json", {"dither": 0.1}, "dither = 0.1"),
        (VOXTRAL, "preprocessor_config.json", {"tricks": 1}, "fields that edgeformer does not know: tricks"),
        (VOXTRAL, "preprocessor_config.json", {"feature_extractor_type": "ClapFeatureExtractor"}, "Clap"),
        (VOXTRAL, "config.json", {"audio_token_id": 5}, "audio_token_id = 5"),
        (VOXTRAL, "config.json", {"audio_trick": 5}, "audio_trick"),
        (QWEN, "config.json", {"audio_token_index": 5}, "audio_token_index = 5"),
        (QWEN, "processor_config.json", {"tricks": 1}, "tricks"),
    ],
)
def test_unknown_fields_of_sound_are_refused(models, tmp_path, case, file, fields, message):
    folder = shutil.copytree(models(*case).folder, tmp_path / "model")
    data = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(data | fields))
    with pytest.raises(ConfigError, match=message) as refused:
        export_model(folder, tmp_path / "bundle", verify=None)
    assert "--text-only" in str(refused.value) and not (tmp_path / "bundle").exists()


def test_clients_find_what_prepares_sound(models, bundles):
    of_sound, of_both = "preprocessor_config.json", "processor_config.json"
    for case, name in ((VOXTRAL, of_sound), (QWEN, of_both)):
        assert (bundles(*case) / name).read_bytes() == (models(*case).folder / name).read_bytes()
    # transformers.js looks for the class of the processor in the file of its half.
    fields, theirs, whole = (
        json.loads((folder / name).read_text())
        for folder, name in ((bundles(*QWEN), of_sound), (models(*QWEN).folder, of_sound), (bundles(*QWEN), of_both))
    )
    assert fields == theirs | {"processor_class": whole["processor_class"]}


def test_the_text_model_is_exported_alone(models, bundles, tmp_path, voxtral):
    export_model(models(*VOXTRAL).folder, tmp_path / "text", text_only=True, verify=None)
    text = load(tmp_path / "text", "cpu", 1)
    assert text.manifest.task == "causal-lm" and "audio_encoder" not in text.manifest.graphs
    options = {"max_new_tokens": 6, "ignore_eos": True}
    assert text.generate("What?", **options).token_ids == voxtral.generate("What?", **options).token_ids


def changed(owner, name, change):
    """Return a patch of a method whose result is changed."""
    right = getattr(owner, name)
    return patch.object(owner, name, lambda self, *inputs, **options: change(right(self, *inputs, **options)))


def interleaved():
    """Stack frames that are far from each other."""
    right = StackedFrames.forward

    def apart(self, states):
        frames = self.config.frames
        return right(self, states.unflatten(1, (frames, -1)).transpose(1, 2).flatten(1, 2))

    return patch.object(StackedFrames, "forward", apart)


def unmasked():
    """Let silence be attended to."""
    right = SoundTower.states_after

    def heard(self, features, *mask, layers):
        return right(self, features, *map(torch.ones_like, mask), layers=layers)

    return patch.object(SoundTower, "states_after", heard)


def normed_first():
    """Pool states behind the norm."""
    right = SoundTower.encode_blocks

    def normed(self, *inputs):
        return self.final_norm(right(self, *inputs))

    return patch.object(SoundTower, "encode_blocks", normed)


FAULTS = {
    "frames far apart": (VOXTRAL, interleaved),
    "frames one later": (VOXTRAL, lambda: changed(SoundTower, "encode_blocks", lambda x: x.roll(1, 1))),
    "silence attended to": (QWEN, unmasked),
    "pooled behind the norm": (QWEN, normed_first),
    "pairs one later": (QWEN, lambda: changed(SoundTower, "encode_blocks", lambda x: x.roll(1, 1))),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_of_towers_of_sound_are_refused(models, bundles, name):
    case, planted = FAULTS[name]
    source, bundle = open_source(models(*case).folder), bundles(*case)
    with planted(), pytest.raises(ExportError, match="does not compute what"):
        compare_modules(source, source.weights())
    with planted():
        report = verify(bundle, source.folder, mode="quick")
    failed = {check.name for check in report.failures()}
    assert failed and all(each.startswith("recordings, ") for each in failed)


def clipped_by_window(samples, tower):
    """Windows of a recording that are each clipped below their own loudest value."""
    size = tower.frames * audio.HOP
    parts = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [window for part in parts for window in recordings.windows_of(part, tower)]


SOUND_FAULTS = {
    "a threshold of its own for each window": lambda: patch.object(sounds, "windows_of", clipped_by_window),
    "a window without the middle of its frames": lambda: patch.object(recordings, "HOP", audio.HOP + 1),
    "bins in another order": lambda: patch.object(audio, "mel_filters", lambda bins: MEL(bins)[::-1]),
}
MEL = audio.mel_filters


@pytest.mark.parametrize("name", SOUND_FAULTS)
def test_an_export_refuses_other_spectrograms(models, name):
    source = open_source(models(*VOXTRAL).folder)
    placeholder = read_placeholder(source, source.config, source.folder)
    with SOUND_FAULTS[name](), pytest.raises(ExportError, match="does not make of a recording what"):
        compare_sounds(source, placeholder, source.folder)


def test_an_export_refuses_other_prompts_with_sound(models):
    source = open_source(models(*QWEN).folder)
    placeholder = read_placeholder(source, source.config, source.folder)
    wrong = replace(placeholder, start=SPECIAL.index("<|audio_bos|>"))
    with pytest.raises(ExportError, match="does not make of a prompt with recordings what"):
        compare_sounds(source, wrong, source.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"precision": "int4"}, {"precision": "int8"}, {"precision": "fp16"}, {"ops": "standard"}, {"ops": "portable"},
     {"deployment": "web"}, {"ops": "standard", "cache": "static"}],
)  # fmt: skip
@pytest.mark.parametrize(("family", "name"), FIRST)
def test_every_kind_of_bundle_hears(models, tmp_path, family, name, options):
    export_model(models(family, name).folder, tmp_path / "bundle", **options)
    found = load(tmp_path / "bundle", "cpu", 1).generate(f"{MARKS[family]} a", sounds=SOUNDS[:1], max_new_tokens=3)
    assert found.prompt_tokens > 3
