"""Every export compares the module of a family with that of transformers on the same checkpoint, and says whether."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeformer.checkpoints.source import open_source
from edgeformer.config import SinusoidalPositions
from edgeformer.errors import ExportError
from edgeformer.export import export_model
from edgeformer.export.importers import library_comparison
from edgeformer.export.importers.library_comparison import compare_modules

LLAMA = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
BERT = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
PAIR = {
    "vocab_size": 131, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80, "max_position_embeddings": 64,
    "pad_token_id": 1, "decoder_start_token_id": 2,
}  # fmt: skip
WHISPER = {name: size for name, size in PAIR.items() if name != "max_position_embeddings"} | {
    "max_source_positions": 20, "max_target_positions": 16, "num_mel_bins": 8,
}  # fmt: skip
MODELS = {
    "llama": ("AutoModelForCausalLM", LLAMA),
    "bert": ("AutoModelForMaskedLM", BERT),
    "roberta": ("AutoModelForSequenceClassification", BERT | {"pad_token_id": 1}),
    "pegasus": ("AutoModelForSeq2SeqLM", PAIR),
    "marian": ("AutoModelForSeq2SeqLM", PAIR),
    "whisper": ("AutoModelForSpeechSeq2Seq", WHISPER),
}


@pytest.fixture
def make_folder(make_model):
    """Return a function that saves the model of a family."""
    return lambda family: make_model(family, auto=MODELS[family][0], **MODELS[family][1])


@pytest.mark.parametrize("family", MODELS)
def test_our_module_is_that_of_transformers(family, make_folder):
    source = open_source(make_folder(family))
    comparison = compare_modules(source, source.weights())
    assert comparison.reason is None and comparison.library.startswith("transformers 5.")
    assert comparison.difference < 1e-7


def other_norms(config):
    blocks = tuple(replace(block, norm=replace(block.norm, eps=1e-4)) for block in config.blocks)
    return replace(config, blocks=blocks)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_config_that_is_read_wrong_is_refused(family, make_folder):
    source = open_source(make_folder(family))
    wrong = replace(source, config=other_norms(source.config))
    with pytest.raises(ExportError, match=rf"module of this {family} does not compute what transformers 5\S+ computes"):
        compare_modules(wrong, source.weights())


def test_computed_positions_instead_of_stored_ones_are_refused(make_folder):
    folder = make_folder("pegasus")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"] = torch.randn(64, 64)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    source = open_source(folder)
    assert compare_modules(source, source.weights()).difference < 1e-7
    config = source.config
    encoder = replace(config.encoder, position_embedding=SinusoidalPositions(interleaved=False))
    with pytest.raises(ExportError, match="outputs of a random text differ by"):
        compare_modules(replace(source, config=replace(config, encoder=encoder)), source.weights())


def test_the_certificate_says_what_was_compared(make_folder, tmp_path):
    export_model(make_folder("llama"), tmp_path / "bundle")
    report = json.loads((tmp_path / "bundle/parity/report.json").read_text())
    assert report["comparison"]["library"].startswith("transformers 5.") and report["comparison"]["difference"] < 1e-7
    manifest = json.loads((tmp_path / "bundle/edgeformer.json").read_text())
    assert manifest["parity"]["comparison"] == report["comparison"]
    page = (tmp_path / "bundle/parity/report.html").read_text()
    assert "Eager PyTorch differs from the module of transformers 5." in page
    assert "Eager PyTorch differs from the module of transformers 5." in (tmp_path / "bundle/README.md").read_text()


def compared(source):
    return compare_modules(source, source.weights()).describe()


def test_what_was_not_compared_is_said_with_its_reason(make_folder, monkeypatch):
    source = open_source(make_folder("llama"))
    assert "was not compared with transformers' own module, because the model has random weights" in compared(
        replace(source, random_weights=1)
    )
    other = replace(source, hf_config=source.hf_config | {"model_type": "generic"})
    assert "because transformers has no model_type 'generic'" in compared(other)
    with monkeypatch.context() as patch:
        patch.setattr(library_comparison, "find_spec", lambda name: None)
        assert "because transformers is not installed" in compared(source)
    monkeypatch.setattr(library_comparison, "LARGEST_MODULE", 0)
    assert "norm alone would take 0.0 GiB of memory in transformers" in compared(source)
