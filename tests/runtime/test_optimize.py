"""`edgeformer optimize`: graphs that this machine loads faster answer as the bundle's own, and only on this machine."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import transformers
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.errors import BundleError, ParityError, RequestError
from edgeformer.export import export_model, verify
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import QuantizationOverrides
from edgeformer.runtime import load
from edgeformer.runtime.measure import prepack
from edgeformer.runtime.sessions import session as sessions
from edgeformer.runtime.sessions.graphs import int8_cache
from edgeformer.runtime.sessions.kernels import BODIES
from edgeformer.runtime.sessions.prepacked import prepacked_graphs, prepacked_record

T5 = {
    "vocab_size": 97, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 1, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
BERT = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
TEXT = [1, 17, 40, 99, 5, 64]


@pytest.fixture
def bundle(llama_bundle, tmp_path):
    return Path(shutil.copytree(llama_bundle, tmp_path / "llama"))


@pytest.fixture
def opened(monkeypatch):
    """Names of the graphs that sessions were opened of, from now on."""
    names = []
    real = sessions.open_session

    def open_and_note(path, *rest, **options):
        names.append(path)
        return real(path, *rest, **options)

    monkeypatch.setattr(int8_cache, "open_session", open_and_note)
    return names


MEASURING = {"test_a_prepacked_bundle_answers_the_same_verified", "test_the_command_tells_what_it_brought"}


@pytest.fixture(autouse=True)
def few_measure_loading(monkeypatch, request):
    """Most tests are not about the times before and after, for each of which two fresh processes load the bundle."""
    if request.node.originalname not in MEASURING:
        monkeypatch.setattr(prepack, "_startup", lambda folder, threads: prepack.Startup(load_seconds=1.0, memory=None))


def test_a_prepacked_bundle_answers_the_same_verified(bundle, llama_bundle, opened):
    done = prepack.optimize(bundle)

    assert done.bytes == sum(path.stat().st_size for path in done.folder.iterdir()) > 0
    assert done.before.load_seconds > 0 < done.after.load_seconds
    del opened[:]
    np.testing.assert_array_equal(load(bundle).forward(TEXT), load(llama_bundle).forward(TEXT))
    assert opened == [done.folder / "model.onnx", llama_bundle / "onnx" / "model.onnx"]
    assert verify(bundle, mode="quick").passed
    assert prepack.optimize(bundle).folder == done.folder  # once more, in its place
    assert [path.name for path in bundle.iterdir() if path.name.startswith(".")] == []


def test_a_start_of_logits_is_no_constant_when_prepacked(make_model, tmp_path):
    """Rotations in small ops begin their slices at 0, as the logits do until a run asks for its last token's alone."""
    sizes = {"hidden_size": 40, "intermediate_size": 56, "num_attention_heads": 5, "num_key_value_heads": 1}
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
    checkpoint = make_model("gemma3_text", vocab_size=120, head_dim=8, max_position_embeddings=64, **sizes, **layers)
    bundle = export_model(checkpoint, tmp_path / "bundle", verify=None).path

    done = prepack.optimize(bundle)  # which compares answers
    for graph in done.folder.glob("*.onnx"):
        packed = onnx.load(graph, load_external_data=False).graph
        readers = [node.name for node in packed.node if "logits_start" in node.input]
        assert readers and all("/last/" in name for name in readers), readers
        assert "logits_start" not in [value.name for value in packed.input]  # each client would be warned of it


@pytest.mark.parametrize("changed", ["processor", "onnxruntime"])
def test_elsewhere_the_bundles_own_graphs_are_opened(bundle, opened, monkeypatch, changed):
    prepack.optimize(bundle)
    if changed == "processor":
        monkeypatch.setattr(prepacked_graphs, "processor", lambda: "another one")
    else:
        monkeypatch.setattr(sessions.onnxruntime(), "__version__", "9.9")
    del opened[:]
    load(bundle)
    assert opened == [bundle / "onnx" / "model.onnx"]


def test_prepacked_graphs_by_somebody_else_are_not_opened(bundle, make_llama, tmp_path, opened, monkeypatch):
    """A bundle may come with any graph under the name that this machine looks for."""
    own = prepack.optimize(bundle).folder
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    load(copy)  # hashed, as it is a copy
    assert opened[-1] == copy / "prepacked" / own.name / "model.onnx"
    other = export_model(make_llama(seed=1), tmp_path / "other", verify=None).path
    for name in ("model.onnx", "model.onnx_data"):
        shutil.copy(other / "onnx" / name, copy / "prepacked" / own.name / name)
    with pytest.warns(UserWarning, match="were not written here by this user, or were changed since, so they are not"):
        load(copy)
    assert opened[-1] == copy / "onnx" / "model.onnx"
    monkeypatch.setenv("EDGEFORMER_CACHE", str(tmp_path / "of another user"))
    with pytest.warns(UserWarning, match="Write them again with: edgeformer optimize"):
        load(bundle)
    assert opened[-1] == bundle / "onnx" / "model.onnx"


def test_a_cache_that_cannot_be_written_is_said(bundle, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEFORMER_CACHE", str(tmp_path / "file"))
    with pytest.raises(BundleError, match="cannot write .*Let EDGEFORMER_CACHE name a folder.*Nothing was kept"):
        prepack.optimize(bundle)
    assert not (bundle / "prepacked").exists()


def test_removing_a_link_leaves_what_it_points_to(bundle, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one.jpg").write_text("precious")
    (bundle / "prepacked").symlink_to(tmp_path / "mine")
    assert prepack.remove(bundle)
    assert (tmp_path / "mine" / "one.jpg").exists() and not (bundle / "prepacked").exists()


def test_a_new_export_does_not_find_the_old_prepacked_graphs(bundle, llama_folder):
    old = prepack.optimize(bundle).folder
    manifest = Manifest.read(export_model(llama_folder, bundle, overwrite=True, precision="bf16", verify=None).path)
    assert not old.exists() and prepacked_graphs.prepacked_folder(bundle, manifest, BODIES) != old


@pytest.mark.parametrize(
    ("model_type", "auto", "sizes", "graphs"),
    [
        ("t5", "AutoModelForSeq2SeqLM", T5, {"encoder_model.onnx", "decoder_model.onnx"}),
        ("bert", "AutoModel", BERT, {"model.onnx"}),
    ],
)
def test_every_graph_that_a_model_opens_is_prepacked(make_model, tmp_path, model_type, auto, sizes, graphs):
    path = export_model(make_model(model_type, auto=auto, **sizes), tmp_path / "b", verify=None).path
    folder = prepack.optimize(path).folder
    assert {each.name for each in folder.glob("*.onnx")} == graphs


def test_graphs_that_answer_otherwise_are_not_kept(bundle, make_llama, tmp_path, monkeypatch):
    other = export_model(make_llama(seed=1), tmp_path / "other", verify=None).path

    def write_other(graph, destination, kernels):
        shutil.copy(other / "onnx" / "model.onnx", destination)
        shutil.copy(other / "onnx" / "model.onnx_data", destination.parent / "model.onnx_data")

    monkeypatch.setattr(prepack, "_write", write_other)
    with pytest.raises(ParityError, match="prepacked graphs differ from the bundle's own; they were removed"):
        prepack.optimize(bundle)
    assert not (bundle / "prepacked").exists()


def test_a_folder_that_is_no_bundle_keeps_what_it_has(tmp_path):
    mine = tmp_path / "prepacked" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("dear")
    with pytest.raises(BundleError):
        prepack.optimize(tmp_path)
    for option in ([], ["--remove"]):
        assert "error: " in CliRunner().invoke(cli, ["optimize", str(tmp_path), *option]).stderr
    assert mine.read_text() == "dear"


def test_a_killed_command_leaves_nothing_after_the_next(bundle):
    (bundle / ".prepacked.killed").mkdir()
    prepack.optimize(bundle)
    assert not list(bundle.glob(".prepacked*"))


def test_damaged_prepacked_graphs_are_an_error_with_advice(bundle):
    folder = prepack.optimize(bundle).folder
    (folder / "model.onnx").write_bytes(b"half")
    prepacked_record.remember(folder)
    with pytest.raises(BundleError, match="edgeformer optimize .* --remove"):
        load(bundle)
    prepack.remove(bundle)
    load(bundle)


def test_a_full_disk_leaves_nothing(bundle, monkeypatch):
    def fail(graph, destination, kernels):
        destination.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    before = sorted(bundle.rglob("*"))
    monkeypatch.setattr(prepack, "_write", fail)
    with pytest.raises(BundleError, match="No space left on device. Nothing was kept"):
        prepack.optimize(bundle)
    assert sorted(bundle.rglob("*")) == before


@pytest.mark.parametrize("activations", ["block", "per_token"])
def test_quantized_graphs_are_prepacked_with_their_scales(llama_folder, tmp_path, activations):
    overrides = QuantizationOverrides(activations=activations)
    options = {"precision": "int8", "quantization": overrides, "verify": None}
    path = export_model(llama_folder, tmp_path / "b", **options).path
    assert [each.name for each in prepack.optimize(path).folder.glob("*.onnx")] == ["model.onnx"]


def test_a_model_of_pictures_is_prepacked(tmp_path):
    """It has no tokens, of which a text could be drawn."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    path = export_model(tmp_path / "vit", tmp_path / "b", verify=None).path
    assert [each.name for each in prepack.optimize(path).folder.glob("*.onnx")] == ["model.onnx"]


def test_every_weight_begins_where_a_page_does(llama_folder, tmp_path):
    path = export_model(llama_folder, tmp_path / "b", precision="int4", verify=None).path
    model = onnx.load(prepack.optimize(path).folder / "model.onnx", load_external_data=False)
    places, packed = [], 0
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                places.append(int(entry.value))
            elif entry.key.startswith("prepacked_"):
                packed += 1
                places += [int(blob.split(";")[0]) for blob in entry.value.split("|")[1:]]
    assert packed >= 3 * 4 and len(places) > packed  # four products a layer
    assert {place % 4096 for place in places} == {0}
    assert len(set(places)) == len(places)


def test_what_cannot_be_prepacked_is_refused(llama_bundle, tmp_path):
    manifest = json.loads((llama_bundle / "edgeformer.json").read_text())
    shutil.copytree(llama_bundle, tmp_path / "cuda")
    (tmp_path / "cuda" / "edgeformer.json").write_text(
        json.dumps(manifest | {"plan": manifest["plan"] | {"provider": "cuda"}})
    )
    with pytest.raises(RequestError, match="this bundle is for CUDA"):
        prepack.optimize(tmp_path / "cuda")
    with pytest.raises(BundleError, match="there is no folder"):
        prepack.optimize(tmp_path / "nowhere")


def test_the_command_tells_what_it_brought(bundle):
    run = CliRunner().invoke
    told = run(cli, ["optimize", str(bundle)])
    assert told.exit_code == 0, told.output
    assert "before" in told.stdout and "after" in told.stdout and "bit for bit" in told.stdout
    data = json.loads(run(cli, ["optimize", str(bundle), "--json"]).stdout)
    assert data["bytes"] > 0 and data["after"]["load_seconds"] > 0
    assert "removed" in run(cli, ["optimize", str(bundle), "--remove"]).stderr
    assert "nothing to remove" in run(cli, ["optimize", str(bundle), "--remove"]).stderr
    assert not (bundle / "prepacked").exists()
