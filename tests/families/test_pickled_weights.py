"""Weights in pytorch_model.bin: refused by default, read as tensors alone on request."""

import hashlib
import json
import os
import pickle
import shutil

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from edgeformer.checkpoints.found_model import PRESETS, find_model
from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.tensor_files import open_tensors
from edgeformer.cli.main import cli
from edgeformer.errors import WeightsError
from edgeformer.export import export_model, verify
from edgeformer.export.pipeline import CERTIFICATE


@pytest.fixture
def pickled(llama_folder, tmp_path):
    """Return a function that copies a checkpoint with its tensors in pickles, one or two."""

    def save(shards=1, **options):
        folder = tmp_path / "pickled"
        shutil.copytree(llama_folder, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
        tensors = load_file(llama_folder / "model.safetensors")
        if shards == 1:
            torch.save(tensors, folder / "pytorch_model.bin", **options)
            return folder
        files = {name: f"pytorch_model-{index % 2 + 1:05}-of-00002.bin" for index, name in enumerate(tensors)}
        for file in set(files.values()):
            torch.save({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
        return folder

    return save


def weights_of(folder, allow_pickle):
    return open_source(find_model(folder, allow_pickle)).weights()


@pytest.mark.parametrize(
    ("shards", "options"), [(1, {}), (2, {}), (1, {"_use_new_zipfile_serialization": False})], ids=["one", "two", "old"]
)
def test_tensors_are_those_of_the_safetensors(pickled, llama_folder, shards, options):
    found, expected = weights_of(pickled(shards, **options), True), weights_of(llama_folder, False)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_change_of_what_was_read_does_not_reach_the_file(pickled):
    weights = weights_of(pickled(), True)
    name = next(iter(weights))
    weights[name].zero_()
    assert weights[name].abs().max() > 0


def test_pickled_weights_are_refused_by_default(pickled):
    folder = pickled()
    said = r"pytorch_model\.bin is a pickle, which is not read: save it as safetensors; .* on request: --allow-pickle"
    with pytest.raises(WeightsError, match=said):
        weights_of(folder, False)
    done = CliRunner().invoke(cli, ["export", "--model", str(folder), "-o", str(folder / "bundle")])
    assert done.exit_code == 1 and "--allow-pickle" in done.stderr


def test_the_certificate_names_the_pickles_by_their_hashes(pickled, tmp_path):
    folder, bundle = pickled(), tmp_path / "bundle"
    done = export_model(folder, bundle, allow_pickle=True)
    hashes = {"pytorch_model.bin": hashlib.sha256((folder / "pytorch_model.bin").read_bytes()).hexdigest()}
    assert done.manifest.provenance.pickled_weights == hashes
    report = json.loads((bundle / CERTIFICATE / "report.json").read_text())
    assert report["pickled_weights"] == hashes
    assert f"SHA-256 {hashes['pytorch_model.bin']}" in (bundle / "README.md").read_text()
    assert verify(bundle, against=folder).passed


def test_safetensors_come_first(llama_folder, pickled):
    folder = pickled()
    shutil.copy(llama_folder / "model.safetensors", folder)
    (folder / "pytorch_model.bin").write_bytes(b"no pickle")
    source = find_model(folder, True)
    assert source.pickled_weights() == {}
    assert len(open_source(source).weights()) > 0


def test_layers_behind_a_pooling_may_be_pickles_too(tmp_path):
    folder = tmp_path / "sentences"
    shutil.copytree(PRESETS / "tiny-embed", folder)
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 9, "name": "9", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules[:2], dense]))
    (folder / "2_Dense").mkdir()
    options = {"in_features": 128, "out_features": 8, "activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(options))
    layer = {"linear.weight": torch.ones(8, 128), "linear.bias": torch.zeros(8)}
    torch.save(layer, folder / "2_Dense" / "pytorch_model.bin")
    source = open_source(find_model(folder, True))
    assert torch.equal(source.weights()["pooler.layers.0.linear.weight"], torch.ones(8, 128))
    assert list(source.pickled_weights()) == ["2_Dense/pytorch_model.bin"]
    with pytest.raises(WeightsError, match="2_Dense has no safetensors files"):
        weights_of(folder, False)


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("made-by-a-pickle",))


def damaged(content):
    content = bytearray(content)
    for place in range(0, len(content), 97):
        content[place] ^= 255
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("evil zip", "no pickle of tensors alone: it refers to posix.mkdir|nt.mkdir"),
        ("evil old", "no pickle of tensors alone"),
        ("evil plain", "no pickle of tensors alone"),
        ("module", "no pickle of tensors alone: it refers to torch.nn.modules.linear.Linear"),
        ("number", "holds more than tensors by name: 'epoch'"),
        ("list", "holds no tensors by name"),
        ("damaged", "no pickle of tensors alone: it cannot be read"),
        ("empty", "no pickle of tensors alone: it cannot be read"),
    ],
)
def test_pickles_of_anything_else_are_refused_and_call_nothing(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    match name:
        case "evil zip":
            torch.save({"a": torch.ones(2), "b": Evil()}, path)
        case "evil old":
            torch.save({"b": Evil()}, path, _use_new_zipfile_serialization=False)
        case "evil plain":
            path.write_bytes(pickle.dumps(Evil()))
        case "module":
            torch.save({"a": torch.nn.Linear(2, 2)}, path)
        case "number":
            torch.save({"a": torch.ones(2), "epoch": 3}, path)
        case "list":
            torch.save([torch.ones(2)], path)
        case "damaged":
            torch.save({"a": torch.ones(200)}, path)
            path.write_bytes(damaged(path.read_bytes()))
        case "empty":
            path.write_bytes(b"")
    with pytest.raises(WeightsError, match=message) as error:
        open_tensors(tmp_path, allow_pickle=True)
    assert not (tmp_path / "made-by-a-pickle").exists()
    assert "weights_only" not in str(error.value)  # torch's advice to run the file


def test_an_index_names_no_file_outside(tmp_path):
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "../pytorch_model.bin"}}')
    with pytest.raises(WeightsError, match="which is outside its folder. Do not trust it"):
        open_tensors(tmp_path, allow_pickle=True)
