"""The commands with encoder-decoders and encoders: what they print, what they refuse, their exit codes."""

import functools
import json
import shlex
import wave
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import tokenizers
from click.testing import CliRunner
from speech_model import speech_model

from edgeformer.cli.main import cli
from edgeformer.runtime import SpeechConfig, load
from edgeformer.runtime.tasks.speech import subtitles

SPECIAL = {
    "t5": ["<pad>", "</s>", "<unk>"],
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "whisper": ["</s>"],
}
AROUND = {"t5": "$A </s>", "bert": "[CLS] $A [SEP]", "whisper": "$A"}
BERT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 24,
}  # fmt: skip
TASKS = {"translation_en_to_de": {"prefix": "w11 w12 "}, "translation_en_to_fr": {"prefix": "w13 "}}
# By name: family and class of the model, its config, and options of its export.
MODELS = {
    "t5": (
        "t5", "AutoModelForSeq2SeqLM",
        {
            "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
            "decoder_start_token_id": 0, "task_specific_params": TASKS,
        },
        ["--context-length", "40"],
    ),
    "whisper": (
        "whisper", "AutoModelForSpeechSeq2Seq",
        {
            "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8,
            "max_source_positions": 50, "max_target_positions": 24, "decoder_start_token_id": 2, "eos_token_id": 0,
            "pad_token_id": 0, "bos_token_id": 0,
        },
        ["--no-verify"],
    ),
    "masked": ("bert", "AutoModelForMaskedLM", BERT, []),
    "labels": (
        "bert", "AutoModelForSequenceClassification", BERT | {"id2label": {0: "bad", 1: "so-so", 2: "good"}},
        ["--no-verify"],
    ),
    "sentences": ("bert", "AutoModel", BERT, ["--pooling", "mean", "--normalize", "--no-verify"]),
}  # fmt: skip
SPEECH = {
    "lang_to_id": {"<|en|>": 60, "<|de|>": 61}, "task_to_id": {"transcribe": 62, "translate": 63},
    "suppress_tokens": [60, 61, 62, 63], "no_timestamps_token_id": 55,
    "decoder_start_token_id": 2, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def run(*arguments, input=None):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=input)


def write_tokenizer(folder, family):
    """Write a tokenizer in which token 7 is the word w7, and the first tokens are special."""
    special = SPECIAL[family]
    vocabulary = {token: id for id, token in enumerate(special)} | {f"w{id}": id for id in range(len(special), 64)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, f"w{len(special)}"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    pairs = list(zip(special, range(len(special)), strict=True))
    backend.post_processor = tokenizers.processors.TemplateProcessing(AROUND[family], special_tokens=pairs)
    backend.add_special_tokens(special)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]"} if family == "bert" else {}))


@pytest.fixture(scope="module")
def exported(make_model, tmp_path_factory):
    """Return a function that returns a model's folder, its bundle, and the output of its export."""

    @functools.cache
    def of_name(name):
        family, auto, config, options = MODELS[name]
        folder = make_model(family, list(MODELS).index(name), auto=auto, **config)
        write_tokenizer(folder, family)
        if family == "whisper":
            (folder / "generation_config.json").write_text(json.dumps(SPEECH))
        bundle = tmp_path_factory.mktemp("bundles") / f"my {name}"
        result = run("export", "--model", folder, "-o", bundle, *options)
        assert result.exit_code == 0, result.output
        return SimpleNamespace(folder=folder, bundle=bundle, printed=result.stdout)

    return of_name


@pytest.fixture
def bundle(exported, request):
    """Return the bundle that `of` names."""
    return exported(request.param).bundle


def of(*names):
    """Parametrize a test with the bundles of these names."""
    return pytest.mark.parametrize("bundle", names, indirect=True)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("t5", 'edgeformer run {} "w11 w12 The woman sees the dog."'),
        ("whisper", "edgeformer run {} recording.wav"),
        ("masked", 'edgeformer run {} "The capital of France is [MASK]."'),
        ("labels", 'edgeformer run {} "Once upon a time, there was a little girl"'),
        ("sentences", 'edgeformer embed {} "A cat sleeps." "A kitten naps." "Stocks fell."'),
    ],
)
def test_export_says_what_to_do_next(exported, name, line):
    made = exported(name)
    assert f"exported folder {made.folder.name} to {made.bundle}: " in made.printed
    assert made.printed.splitlines()[-1] == f"next: {line.format(shlex.quote(str(made.bundle)))}"
    assert ("verified against float64 PyTorch" in made.printed) == (name in ("t5", "masked"))


def test_what_export_says_next_works(exported):
    for name in ("t5", "masked", "labels", "sentences"):
        program, *arguments = shlex.split(exported(name).printed.splitlines()[-1].removeprefix("next: "))
        assert program == "edgeformer"
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        assert result.stdout


@of("t5", "whisper", "masked", "labels", "sentences")
def test_info_knows_every_kind(bundle):
    result = run("info", bundle)
    assert result.exit_code == 0, result.output
    assert "parameters" in result.stdout
    data = json.loads(run("info", bundle, "--json").stdout)
    assert data["files"]["onnx/model.onnx_data"] == (bundle / "onnx" / "model.onnx_data").stat().st_size
    weights = {name for entry in load(bundle).manifest.weights.values() for name in entry.parameters}
    assert data["parameters"] > len(weights) > 10


@of("t5", "masked")
def test_verify_exits_with_0_and_sees_another_model(bundle, make_model):
    result = run("verify", bundle, "--quick")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("verified (")
    if bundle.name == "my masked":
        result = run(
            "verify", bundle, "--quick", "--against", make_model("bert", 9, auto="AutoModelForMaskedLM", **BERT)
        )
        assert result.exit_code == 1
        assert result.stdout.splitlines()[-1].startswith("NOT verified: ")


TEXT = "w5 w6 w7"


@of("t5")
def test_run_writes_what_follows(bundle):
    expected = load(bundle).generate(TEXT, max_new_tokens=8)
    assert len(expected.text.split()) > 2
    result = run("run", bundle, TEXT, "-n", 8)
    assert (result.exit_code, result.stdout) == (0, expected.text + "\n")
    assert f"4 + {len(expected.token_ids)} tokens; ended by {expected.finish_reason}; prefill" in result.stderr
    assert run("run", bundle, "-n", 8, input=f"{TEXT}\n").stdout == result.stdout
    data = json.loads(run("run", bundle, TEXT, "-n", 8, "--json").stdout)
    assert (data["text"], data["token_ids"], data["score"]) == (expected.text, expected.token_ids, None)


@of("t5")
def test_run_searches_with_beams(bundle):
    expected = load(bundle).generate(TEXT, max_new_tokens=8, num_beams=3)
    assert expected.token_ids != load(bundle).generate(TEXT, max_new_tokens=8).token_ids
    assert run("run", bundle, TEXT, "-n", 8, "--num-beams", 3).stdout == expected.text + "\n"
    data = json.loads(run("run", bundle, TEXT, "-n", 8, "--num-beams", 3, "--json").stdout)
    assert (data["token_ids"], data["score"]) == (expected.token_ids, pytest.approx(expected.score))
    result = run("run", bundle, TEXT, "--num-beams", 2, "--stop", "w5")
    assert (result.exit_code, result.stderr) == (1, "error: stop texts do not work with beams; use num_beams=1.\n")
    assert run("run", bundle, TEXT, "--num-beams", 0).exit_code == 2


@of("t5")
def test_run_draws_and_stops(bundle):
    options = ["-n", 20, "--temperature", 1, "--top-k", 20, "--seed", 7]
    first, second = (run("run", bundle, TEXT, *options).stdout for _ in range(2))
    assert first == second != run("run", bundle, TEXT, *options[:-1], 8).stdout
    word = first.split()[2]
    stopped = run("run", bundle, TEXT, *options, "--stop", word)
    assert stopped.stdout == first[: first.find(word)] + "\n"
    assert "ended by stop" in stopped.stderr


@of("t5")
def test_run_translates_where_languages_are_named(bundle):
    languages = ["--source-language", "en", "--target-language", "fr"]
    expected = load(bundle).generate(f"w13 {TEXT}", max_new_tokens=8).text
    assert expected != load(bundle).generate(f"w11 w12 {TEXT}", max_new_tokens=8).text
    assert run("run", bundle, TEXT, *languages, "-n", 8).stdout == expected + "\n"
    assert json.loads(run("run", bundle, TEXT, *languages, "-n", 8, "--json").stdout) == {"text": expected}
    result = run("run", bundle, TEXT, "--target-language", "fr")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: this model does not translate None → fr. It translates en → de, en → fr.")


@pytest.fixture
def recording(tmp_path):
    """Return 2.5 s of noise of growing volume, as samples and as a file."""
    random = np.random.default_rng(0)
    samples = (random.standard_normal(40000) * np.linspace(0, 6000, 40000)).astype("<i2")
    path = tmp_path / "recording.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return path


@of("whisper")
def test_run_transcribes_a_recording(bundle, recording):
    model = load(bundle)
    expected = model.transcribe(recording, max_new_tokens=6)
    assert len(expected.split()) > 6
    result = run("run", bundle, recording, "-n", 6)
    assert (result.exit_code, result.stdout) == (0, expected + "\n")
    assert run("run", bundle, "-n", 6, input=f"{recording}\n").stdout == result.stdout
    flac = recording.with_suffix(".flac")
    soundfile.write(flac, *soundfile.read(recording, dtype="int16"))
    assert run("run", bundle, flac, "-n", 6).stdout == result.stdout
    for language in ("en", "de"):
        expected = model.transcribe(recording, language, max_new_tokens=6, num_beams=2)
        line = ["run", bundle, recording, "--language", language, "-n", 6, "--num-beams", 2]
        assert run(*line).stdout == expected + "\n"
        told = model.transcript(
            recording, language, speech=SpeechConfig(timestamps=True), max_new_tokens=6, num_beams=2
        )  # fmt: skip
        assert json.loads(run(*line, "--json").stdout) == asdict(told) and told.text == expected


@of("whisper")
def test_run_prints_subtitles_and_translates(bundle, recording):
    model, speech = load(bundle), SpeechConfig(timestamps=True)
    for form in ("srt", "vtt"):
        found = run("run", bundle, recording, "-n", 6, "--language", "de", "--task", "translate", "--subtitles", form)
        expected = model.transcript(recording, "de", "translate", speech=speech, max_new_tokens=6).segments
        assert found.stdout == subtitles(expected, form) and "00:00:00" in found.stdout
    refused = run("run", bundle, recording, "--subtitles", "srt", "--json")
    assert (refused.exit_code, "--json has the times already; leave --subtitles out." in refused.stderr) == (2, True)


def test_run_prints_words_and_takes_an_initial_prompt(make_model, recording, tmp_path):
    whisper = speech_model(make_model, tmp_path, alignment_heads=[[1, 3], [0, 2]])
    speech = SpeechConfig(word_timestamps=True, prompt="w9 w10")
    line = ["run", whisper.path, recording, "-n", 6, "--language", "de", "--initial-prompt", "w9 w10"]
    expected = whisper.ours.transcript(recording, "de", speech=speech, max_new_tokens=6)
    words = [word for segment in expected.segments for word in segment.words]
    found = run(*line, "--words")
    assert (found.exit_code, len(found.stdout.splitlines())) == (0, len(words)) and words
    assert found.stdout.splitlines()[0].split() == [f"{words[0].start:.2f}", f"{words[0].end:.2f}", words[0].text]
    assert run(*line, "--words", "--subtitles", "vtt").stdout == subtitles(words, "vtt")
    shown = json.loads(run(*line, "--words", "--json").stdout)
    assert [word for segment in shown["segments"] for word in segment["words"]] == [asdict(word) for word in words]
    assert run(*line).stdout == expected.text + "\n" != run(*line[:-2]).stdout


@of("whisper")
def test_run_says_why_it_cannot_transcribe(bundle, recording, tmp_path):
    result = run("run", bundle, recording, "--language", "xx")
    assert (result.exit_code, result.stderr) == (1, "error: this model has no language 'xx'; it has de, en.\n")
    result = run("run", bundle, tmp_path / "nowhere.wav")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {tmp_path / 'nowhere.wav'} cannot be read: No such file")
    (tmp_path / "text.wav").write_text("hello")
    assert "text.wav is not a sound file of WAV" in run("run", bundle, tmp_path / "text.wav").stderr
    assert run("run", bundle, input="").stderr.startswith("error: there is no recording; give the path of a sound file")


@of("masked")
def test_run_fills_a_mask(bundle):
    expected = load(bundle).fill_mask("w9 [MASK] w7")
    result = run("run", bundle, "w9 [MASK] w7")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [(f"{each.probability:.3f}", each.token) for each in expected]
    assert [" ".join(row[2:]) for row in rows] == [each.text for each in expected]
    data = json.loads(run("run", bundle, "w9 [MASK] w7", "--json").stdout)
    assert [each["token_id"] for each in data] == [each.token_id for each in expected]
    assert run("run", bundle, input="w9 [MASK] w7\n").stdout == result.stdout
    assert run("run", bundle, "w9").stderr == "error: the text has 0 masks; give it one [MASK].\n"


@of("labels")
def test_run_classifies(bundle):
    expected = load(bundle).classify(TEXT)
    rows = [line.split() for line in run("run", bundle, TEXT).stdout.splitlines()]
    assert rows == [[f"{each.probability:.3f}", each.label] for each in expected]
    data = json.loads(run("run", bundle, TEXT, "--json").stdout)
    assert [each["label"] for each in data] == [each.label for each in expected]


@of("sentences")
def test_embed_ranks_texts_by_their_likeness_to_the_first(bundle):
    texts = ["w5 w6", "w30 w31 w32", "w5 w7", "w5 w6"]
    vectors = load(bundle).embed(texts)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    nearness = vectors @ vectors[0]
    result = run("embed", bundle, *texts)
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["cosine", "text"]
    order = np.argsort(-nearness, kind="stable")
    assert [row.rstrip().split(maxsplit=1) for row in rows] == [
        [f"{nearness[place]:.3f}", texts[place]] for place in order
    ]
    assert run("embed", bundle, input="\n".join(texts) + "\n\n").stdout == result.stdout


@of("sentences")
def test_embed_takes_a_prompt_and_a_size(bundle):
    options = {"prompt": "w9 ", "dimensions": 5}
    result = run("embed", bundle, "w5 w6", "--prompt", "w9 ", "--dimensions", 5, "--json")
    assert np.allclose(json.loads(result.stdout)[0]["vector"], load(bundle).embed("w5 w6", **options))
    result = run("embed", bundle, "w5 w6", "--prompt-name", "query")
    assert (result.exit_code, "prompt_name is 'query'; the model's prompts are none" in result.stderr) == (1, True)


@of("sentences", "masked", "labels")
def test_embed_gives_and_saves_vectors(bundle, tmp_path):
    texts = ["w5 w6", "w30 w31 w32", "w5 w6"]
    vectors = load(bundle).embed(texts)
    data = json.loads(run("embed", bundle, *texts, "--json").stdout)
    assert [each["text"] for each in data] == texts, "a text that comes twice has a vector twice"
    assert np.allclose([each["vector"] for each in data], vectors)
    result = run("embed", bundle, *texts, "--output", tmp_path / "vectors.npy")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1] == f"saved 3 vectors of 32 to {tmp_path / 'vectors.npy'}"
    assert np.allclose(np.load(tmp_path / "vectors.npy"), vectors)
    # The file has the requested name, without a suffix that numpy would add.
    result = run("embed", bundle, texts[0], "-o", tmp_path / "vectors")
    assert (result.exit_code, result.stdout) == (0, "")
    assert np.load(tmp_path / "vectors").shape == (1, 32)
    result = run("embed", bundle, texts[0], "-o", tmp_path / "nowhere" / "vectors.npy")
    assert (result.exit_code, result.stderr.split(": ")[:2]) == (
        1,
        ["error", f"cannot write {tmp_path / 'nowhere' / 'vectors.npy'}"],
    )


@of("sentences")
def test_embed_needs_a_text(bundle):
    result = run("embed", bundle, input="\n")
    assert (result.exit_code, result.stderr) == (1, "error: there is no text; give at least one.\n")


def test_each_command_knows_its_bundles(exported):
    result = run("embed", exported("t5").bundle, TEXT)
    assert result.exit_code == 1
    assert (
        result.stderr
        == f"error: {exported('t5').bundle} is no encoder; it generates text: edgeformer run {exported('t5').bundle}\n"
    )
    result = run("run", exported("sentences").bundle, TEXT)
    assert result.exit_code == 1
    assert result.stderr == f"error: this model makes vectors: edgeformer embed {exported('sentences').bundle} TEXT…\n"


@pytest.mark.parametrize(
    ("name", "options", "refused"),
    [
        ("t5", ["--chat"], "--chat"),
        ("t5", ["--system", "Be brief."], "--system"),
        ("t5", ["--language", "en"], "--language"),
        ("whisper", ["--source-language", "en", "--target-language", "de"], "--source-language, --target-language"),
        ("whisper", ["--target-language", "de", "--chat"], "--target-language, --chat"),
        ("masked", ["-n", "3"], "--max-new-tokens"),
        ("masked", ["--system", "Be brief."], "--system"),
        ("labels", ["--num-beams", "2", "--temperature", "1"], "--num-beams, --temperature"),
        ("labels", ["--stop", "x"], "--stop"),
        ("sentences", ["--chat"], "--chat"),
    ],
)
def test_options_that_a_bundle_has_no_use_for_are_refused(exported, name, options, refused):
    result = run("run", exported(name).bundle, TEXT, *options)
    kind = "seq2seq-lm" if name in ("t5", "whisper") else "encoder"
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {refused}: not for a bundle of this kind ({kind}).\n"


@pytest.fixture(scope="module")
def decoder_bundle(llama_folder, tmp_path_factory):
    """A decoder without an encoder."""
    bundle = tmp_path_factory.mktemp("bundles") / "llama"
    assert run("export", "--model", llama_folder, "-o", bundle, "--no-verify").exit_code == 0
    return bundle


@pytest.mark.parametrize("option", ["--num-beams", "--source-language", "--target-language", "--language"])
def test_a_decoder_refuses_options_of_encoder_decoders(decoder_bundle, option):
    result = run("run", decoder_bundle, "Hi", option, "2")
    assert (result.exit_code, result.stderr) == (1, f"error: {option}: not for a bundle of this kind (causal-lm).\n")
    result = run("embed", decoder_bundle, "Hi")
    assert (result.exit_code, "is no encoder; it generates text: edgeformer run" in result.stderr) == (1, True)


def test_a_system_message_without_a_chat_is_refused(decoder_bundle):
    result = run("run", decoder_bundle, "Hi", "--system", "Be brief.")
    assert result.exit_code == 2
    assert "--system is for --chat." in result.stderr
