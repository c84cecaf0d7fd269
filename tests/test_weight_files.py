"""Which files of a folder are the model's weights: as transformers chooses them, and nothing in silence.

Each reading that was once wrong is planted here, and verification, which reads by transformers' own `from_pretrained`,
refuses it by name.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from edgeformer.checkpoints import tensor_files, weight_map
from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weight_map import WeightFiles
from edgeformer.checkpoints.weights import CheckpointWeights
from edgeformer.errors import ExportError, WeightsError
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.reference.reference import Reference
from edgeformer.models.model_spec import model_spec_of

TOKENS = torch.randint(0, 131, (1, 17), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(llama_folder, tmp_path):
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


def halved(folder):
    return {name: 0.5 * tensor for name, tensor in load_file(folder / "model.safetensors").items()}


def difference(folder):
    """Return how far our logits are from those of transformers for the same folder."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    source = open_source(folder)
    with torch.no_grad():
        expected = theirs(TOKENS).logits
    ours, _ = Reference(model_spec_of(source.config), source.weights()).run(TOKENS)
    return ((ours - expected).abs().max() / expected.abs().max()).item()


STRAY = ["model_old", "optimizer", "zz_backup", "adapter_model", "consolidated", "model-00001-of-00001"]


@pytest.mark.parametrize("name", STRAY)
def test_a_file_beside_the_model_is_not_read(folder, name):
    save_file(halved(folder), folder / f"{name}.safetensors", {"format": "pt"})
    assert difference(folder) < 1e-6


def test_a_file_of_other_tensors_beside_the_model_is_not_read(folder):
    save_file({"base_model.model.x.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, folder / "consolidated.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "no/where"})
    )
    source = open_source(folder)
    assert compare_modules(source, source.weights()).difference < 1e-6


def split(tensors, folder, count, index=True, factor=1.0):
    """Save tensors as `count` shards."""
    places = {name: f"model-{row % count + 1:05}-of-{count:05}.safetensors" for row, name in enumerate(tensors)}
    for file in set(places.values()):
        part = {name: factor * tensors[name] for name in tensors if places[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def test_one_file_comes_before_an_index_as_in_transformers(folder):
    split(load_file(folder / "model.safetensors"), folder, 3, factor=0.5)
    assert difference(folder) < 1e-6


def test_an_index_names_the_shards_among_several_sets(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    split(tensors, folder, 4, index=False, factor=0.5)
    split(tensors, folder, 3)
    assert difference(folder) < 1e-6


def test_a_stale_copy_in_another_shard_is_refused_by_name(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = split(tensors, folder, 3)
    name = next(name for name, file in places.items() if "00001" in file)
    last = folder / "model-00003-of-00003.safetensors"
    shard = load_file(last)
    save_file(shard | {name: tensors[name].clone()}, last, {"format": "pt"})
    assert difference(folder) < 1e-6  # an equal copy does no harm
    save_file(shard | {name: 0.5 * tensors[name]}, last, {"format": "pt"})
    said = rf"00001-of-00003\.safetensors and {last.name} both hold {name}, .*index\.json names model-00001-of-00003"
    with pytest.raises(WeightsError, match=said):
        open_source(folder).weights()


def test_a_folder_of_an_onnx_exporter_names_what_to_give(folder):
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"a graph")
    config = json.loads((folder / "config.json").read_text())
    message = r"has no safetensors files \(onnx/model\.onnx is the graph of another exporter, whose weights have lost"
    with pytest.raises(WeightsError, match=rf"{message}.* made of: a folder or hub id with model\.safetensors\."):
        open_source(folder).weights()
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": "some/model"}))
    with pytest.raises(WeightsError, match=r"made of, some/model by its config\.json: a folder"):
        open_source(folder).weights()


def test_shards_without_an_index_must_be_one_whole_set(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    split(tensors, folder, 3, index=False)
    read = open_source(folder).weights()
    assert torch.equal(read["final_norm.weight"], tensors["model.norm.weight"])
    split(tensors, folder, 4, index=False)
    with pytest.raises(WeightsError, match=r"several sets of shards, .*one of 3 files .* and one of 4 files"):
        open_source(folder).weights()
    for path in folder.glob("*-of-00004.safetensors"):
        path.unlink()
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"holds 2 of the 3 shards .* number 2 is missing"):
        open_source(folder).weights()


def test_a_file_of_another_name_is_not_taken_for_the_model(folder):
    (folder / "model.safetensors").rename(folder / "model_old.safetensors")
    with pytest.raises(WeightsError, match=r"It has model_old\.safetensors; if that is the model, rename it"):
        open_source(folder).weights()


# Readings that are wrong on purpose, which verification must see without reading in the same way.


def stray_file(folder, monkeypatch):
    save_file(halved(folder), folder / "zz_backup.safetensors", {"format": "pt"})
    wrong = WeightFiles((folder / "zz_backup.safetensors",))
    monkeypatch.setattr(tensor_files, "find_weight_files", lambda *given: wrong)


def stale_shard(folder, monkeypatch):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    split(tensors, folder, 3)
    split(tensors, folder, 4, index=False, factor=0.5)
    others = tuple(sorted(folder.glob("*-of-00004.safetensors")))
    monkeypatch.setattr(tensor_files, "find_weight_files", lambda *given: WeightFiles(others))


def ignored_table(folder, monkeypatch):
    """The head that the folder has is ignored, and the embedding taken for it."""
    read = CheckpointWeights.__getitem__
    monkeypatch.setattr(
        CheckpointWeights, "__getitem__",
        lambda self, name: read(self, "embedding.weight" if name == "head.weight" else name),
    )  # fmt: skip


@pytest.mark.parametrize("fault", [stray_file, stale_shard, ignored_table], ids=lambda fault: fault.__name__)
def test_verification_sees_what_was_read_wrong(folder, monkeypatch, fault):
    fault(folder, monkeypatch)
    source = open_source(folder)
    named = "" if fault is ignored_table else r"transformers reads other numbers than edgeformer in .*weight"
    with pytest.raises(ExportError, match=rf"does not compute what transformers .* computes .*{named}"):
        compare_modules(source, source.weights())


def test_verification_sees_a_buffer_that_was_kept(make_model, monkeypatch):
    """The biases of final logits are a buffer of BART, which its checkpoint stores."""
    sizes = {
        "vocab_size": 131, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    }  # fmt: skip
    source = open_source(make_model("bart", auto="AutoModelForSeq2SeqLM", **sizes))
    assert compare_modules(source, source.weights()).difference < 1e-6
    kept = {**source.weights()}
    kept["decoder.head.bias"] = torch.zeros_like(kept["decoder.head.bias"])
    with pytest.raises(ExportError, match="does not compute what transformers"):
        compare_modules(source, kept)


def test_names_of_stored_tensors_are_read_without_torch(folder):
    assert weight_map.find_weight_files(folder).paths == (folder / "model.safetensors",)
