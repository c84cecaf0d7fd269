"""The model card: its examples run as they are written, and say what the bundle says.

Those with nothing but onnxruntime are run in a process that cannot import edgeformer.
"""

import json
import re
import shlex
import subprocess
import sys
import wave
from dataclasses import replace

import numpy as np
import pytest
import tokenizers

from edgeformer.client_files.model_card import first_line, model_card
from edgeformer.config import MaskedLMHead
from edgeformer.export import export_model
from edgeformer.runtime import load

BART = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
BERT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 48,
}  # fmt: skip
# By name: a family and the class that makes a model, its config, and options of its export.
MODELS = {
    "bart": (
        "bart",
        "AutoModelForSeq2SeqLM",
        BART | {"max_position_embeddings": 48, "decoder_start_token_id": 7, "forced_eos_token_id": None},
        {},
    ),
    "whisper": (
        "whisper",
        "AutoModelForSpeechSeq2Seq",
        BART
        | {
            "num_mel_bins": 8,
            "max_source_positions": 50,
            "max_target_positions": 24,
            "decoder_start_token_id": 2,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "bos_token_id": 0,
        },
        {"precision": "fp16"},
    ),
    "masked": ("bert", "AutoModelForMaskedLM", BERT, {}),
    "labels": (
        "distilbert",
        "AutoModelForSequenceClassification",
        {
            "vocab_size": 64,
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 48,
        },
        {},
    ),
    "sentences": ("roberta", "AutoModel", BERT | {"type_vocab_size": 1, "pad_token_id": 0}, {"pooling": "mean"}),
    "llama": (
        "llama",
        "AutoModelForCausalLM",
        {
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 48,
        },
        {},
    ),
}
MODELS |= {
    "llama-static": (*MODELS["llama"][:3], {"ops": "standard", "cache": "static"}),
    "bart-static": (*MODELS["bart"][:3], {"ops": "standard", "cache": "static"}),
}  # fmt: skip
ALONE = [name for name in MODELS if name != "whisper"]


def write_tokenizer(folder):
    """Characters are tokens; [MASK] is one too."""
    special = ["[PAD]", "[UNK]", "[MASK]"]
    vocabulary = {token: id for id, token in enumerate([*special, *"abcdefghijklmnopqrstuvwxyz ABCEFOSTU."])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    backend.add_special_tokens(special)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]"}))


@pytest.fixture(scope="module")
def bundles(make_model, tmp_path_factory):
    """Bundles by name, with tokenizers."""
    made = {}
    for name, (family, auto, config, options) in MODELS.items():
        folder = make_model(family, 29 + len(made), auto=auto, **config)
        write_tokenizer(folder)
        bundle = tmp_path_factory.mktemp("bundles") / name
        # A text of this tokenizer is long: a token for every letter.
        length = {} if name == "whisper" else {"context_length": config["max_position_embeddings"] - 2}
        made[name] = export_model(folder, bundle, verify=None, **options | length).path
    return made


def snippets(bundle):
    """The Python of a card: with edgeformer, with onnxruntime alone, and perhaps with other clients."""
    return re.findall(r"```python\n(.*?)```", (bundle / "README.md").read_text(), re.DOTALL)


BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("edgeformer", "torch", "transformers", "onnx", "tokenizers"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
"""


def printed(code, folder):
    """What a program prints that is run in a folder."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plain(bundle):
    """What the example with onnxruntime alone prints."""
    return printed(BLOCK + snippets(bundle)[1], bundle)


def greedy(model, source, start):
    """Eight tokens without rules or ends, as the card's loop takes them."""
    decoder = model.new_decoder(model.run_encoder([source]), 9)
    tokens = [start]
    for _ in range(8):
        tokens.append(int(decoder.decode_one_token(tokens[-1:])[0].argmax()))
    return tokens


def test_seq2seq_in_onnxruntime_alone_writes_what_ours_does(bundles):
    model = load(bundles["bart"])
    expected = greedy(model, [5, 6, 7, 1], 7)
    assert plain(bundles["bart"]) == f"{expected}\n"
    assert len(set(expected)) > 3, "a model that says one word only would hide much"


def test_whisper_in_onnxruntime_alone_writes_what_ours_writes(bundles, monkeypatch):
    model = load(bundles["whisper"])
    assert model.manifest.plan.precision == "fp16"
    # A spectrogram of zeros, which no sound has.
    monkeypatch.setattr("edgeformer.runtime.tasks.encoder_decoder.log_mel", lambda *_: np.zeros((8, 100), np.float32))
    assert plain(bundles["whisper"]) == f"{greedy(model, np.zeros(9, np.float32), 2)}\n"


@pytest.mark.parametrize(
    ("name", "output", "shape"),
    [("masked", "logits", (2, 3, 64)), ("labels", "logits", (2, 2)), ("sentences", "sentence_embedding", (2, 32))],
)
def test_an_encoder_in_onnxruntime_alone_gives_its_outputs(bundles, name, output, shape):
    assert plain(bundles[name]) == f"last_hidden_state (2, 3, 32)\n{output} {shape}\n"
    outputs = load(bundles[name]).run([[1, 2, 3], [4, 5]])
    assert {name: value.shape for name, value in outputs.items()} == {"last_hidden_state": (2, 3, 32), output: shape}


def test_a_decoder_in_onnxruntime_alone_writes_what_ours_writes(bundles):
    model = load(bundles["llama"])
    assert plain(bundles["llama"]) == f"{model.forward([1, 2, 3])[-1].argmax()}\n"


@pytest.mark.parametrize("name", ALONE)
def test_the_example_of_our_runtime_runs(bundles, name):
    model, said = (
        load(bundles[name]),
        printed(snippets(bundles[name])[0].replace("max_new_tokens=64", "max_new_tokens=9"), bundles[name]),
    )
    match name:
        case "bart":
            assert said == model.generate("A text to translate or to shorten.", num_beams=4).text + "\n"
        case "masked":
            assert said == f"{model.fill_mask('The capital of France is [MASK].')}\n"
        case "labels":
            assert said == f"{model.classify('I like it.')}\n"
        case "sentences":
            assert said == "(2, 32)\n"
        case "llama":
            assert said == model.generate("Once upon a time", max_new_tokens=9).text


def test_the_example_of_a_recording_runs(bundles, tmp_path):
    with wave.open(str(tmp_path / "recording.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(0).integers(-999, 999, 9000).astype("<i2").tobytes())
    expected = load(bundles["whisper"]).transcribe(tmp_path / "recording.wav")
    code = snippets(bundles["whisper"])[0].replace('load(".")', f"load({str(bundles['whisper'])!r})")
    assert printed(code, tmp_path) == expected + "\n"
    assert expected


# What the card says


def test_the_card_says_what_is_in_the_bundle(bundles):
    card = (bundles["bart"] / "README.md").read_text()
    assert "| encoder | 2 layers of 32, 4 heads of 8 |" in card
    assert "| decoder | 2 layers of 32, 4 heads of 8 |" in card
    assert "| vocabulary | 64 |" in card
    assert "| context | 46 tokens |" in card
    assert f"| cache | {2 * 2 * 32 * 4} bytes a token |" in card
    assert "nobody checked yet" in card
    card = (bundles["masked"] / "README.md").read_text()
    assert "| layers | 2 layers of 32, 4 heads of 8 |" in card
    assert "cache" not in card


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("llama", 'pipeline("text-generation", ".")'),
        ("masked", 'run("The capital of France is [MASK].")'),
        ("labels", 'pipeline("text-classification", ".")'),
        ("sentences", '{ pooling: "mean", normalize: false }'),
    ],
)
def test_the_card_says_how_transformers_js_runs_it(bundles, name, call):
    card = (bundles[name] / "README.md").read_text()
    assert card.count("```js\n") == 1
    assert call in card[card.index("```js\n") :]


def test_the_card_promises_only_what_transformers_js_loads(bundles):
    assert "```js" not in (bundles["llama-static"] / "README.md").read_text()


def test_the_card_says_what_a_batch_may_not_do(bundles):
    says = {name: "several tokens of several rows" in (bundles[name] / "README.md").read_text() for name in MODELS}
    assert {name for name, said in says.items() if said} == {"llama", "bart", "whisper"}


@pytest.mark.parametrize("name", MODELS)
def test_the_first_line_is_in_the_card_and_can_be_typed(bundles, name, tmp_path):
    manifest = load(bundles[name]).manifest
    assert f"In a terminal: `{first_line(manifest, '.', bundles[name])}`." in (bundles[name] / "README.md").read_text()
    command, verb, folder, *texts = shlex.split(first_line(manifest, tmp_path / "my models" / name, bundles[name]))
    assert (command, verb) == ("edgeformer", "embed" if name == "sentences" else "run")
    assert folder == str(tmp_path / "my models" / name)
    assert len(texts) == (3 if name == "sentences" else 1)


def test_the_word_for_a_mask_is_that_of_the_tokenizer(bundles, tmp_path):
    manifest = load(bundles["masked"]).manifest
    assert isinstance(manifest.model.head, MaskedLMHead)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": {"content": "<mask>"}}))
    assert first_line(manifest, ".", tmp_path).endswith('"The capital of France is <mask>."')
    card = model_card(manifest, "", tmp_path)
    assert 'model.fill_mask("The capital of France is <mask>.")' in card
    assert '`edgeformer run . "The capital of France is <mask>."`' in card
    assert "[MASK]" not in card


def test_a_translator_is_tried_with_its_first_prefix(bundles, tmp_path):
    manifest = load(bundles["bart"]).manifest
    assert first_line(manifest, ".", tmp_path) == 'edgeformer run . "The woman sees the dog."'
    tasks = {"summarization": {"prefix": "sum up: "}, "translation_en_to_de": {"prefix": "to German: "}}
    (tmp_path / "config.json").write_text(json.dumps({"task_specific_params": tasks}))
    assert first_line(manifest, ".", tmp_path) == 'edgeformer run . "to German: The woman sees the dog."'


@pytest.mark.parametrize(
    ("generation", "bos", "pad", "start"),
    [({"decoder_start_token_id": 3}, 5, 1, 3), ({}, 5, 1, 5), ({}, 0, 1, 0), ({}, None, 1, 1)],
)
def test_the_loop_of_the_card_starts_as_our_runtime_does(bundles, monkeypatch, generation, bos, pad, start):
    model = load(bundles["bart"])
    tokens = replace(model.manifest.tokens, bos=bos, pad=pad)
    monkeypatch.setattr(model, "manifest", replace(model.manifest, generation=generation, tokens=tokens))
    assert f"tokens = [{start}]\n" in model_card(model.manifest, "")
    assert model.start_prompt(None) == [start]
