"""A bundle is whole or not there: killed exports, full disks, overwriting, damage."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from edgeformer.cli import start
from edgeformer.errors import BundleError, ExportError
from edgeformer.export import export_model, verify
from edgeformer.export.bundle import writer as bundle_module
from edgeformer.export.bundle.staging import staged
from edgeformer.manifest.manifest import FILE_NAME
from edgeformer.manifest.parts import sha256
from edgeformer.runtime import load

KILLS = 6

IMPORTED_BY_AN_EXPORT = [
    "edgeformer.export.pipeline", "torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.decomposition",
    "torch.onnx._internal.exporter._core", "torch.onnx._internal.exporter._fx_passes",
]  # fmt: skip
"""Modules that an export imports lazily, for 2.3 of its 3.7 s of CPU in a new process. Absent ones are skipped."""


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def started(function, *arguments):
    """Start a child that calls a function.

    It forks from a server that has imported everything, so that the time to kill in is the export's own.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED_BY_AN_EXPORT)
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def test_a_killed_export_leaves_no_bundle(llama_folder, tmp_path):
    """The export is killed with SIGKILL at random moments, from its first second to past its end."""
    destination = tmp_path / "bundle"

    def export():
        return started(export_quietly, llama_folder, destination)

    export().join()  # warms the server
    began = time.monotonic()
    export().join()
    duration = time.monotonic() - began
    shutil.rmtree(destination)

    moments = random.Random(0)
    rubbish = 0
    for number in range(KILLS):
        process = export()
        if number % 2:  # while it is writing, however busy the machine is
            while process.is_alive() and not any(name.endswith(".partial") for name in entries(tmp_path)):
                time.sleep(0.005)
        else:
            time.sleep(moments.uniform(0.05, 1.1) * duration)
        process.kill()
        process.join()
        rubbish += any(name.endswith(".partial") for name in entries(tmp_path))
        if destination.exists():
            assert verify(destination, mode="quick").passed  # it was whole before the kill came
        else:
            with pytest.raises(BundleError, match="there is no folder"):
                load(destination)
    assert rubbish > 0, "no kill came while the export was writing; the test shows nothing"
    process = export()
    process.join()
    assert process.exitcode == 0
    assert entries(tmp_path) == ["bundle"]
    assert verify(destination).passed


def export_quietly(model, destination):
    export_model(model, destination, verify=None, overwrite=True)


def test_an_interrupted_export_cleans_up_after_itself(tmp_path):
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "bundle", overwrite=False) as folder:
        (folder / "half").write_text("written")
        raise KeyboardInterrupt
    assert entries(tmp_path) == []


def test_an_export_terminated_at_its_start_cleans_up(tmp_path, monkeypatch):
    """The folder is there, and not locked yet."""

    def terminated(folder):
        assert folder.exists()
        raise SystemExit(128 + signal.SIGTERM)

    monkeypatch.setattr("edgeformer.export.bundle.staging._lock", terminated)
    with pytest.raises(SystemExit), staged(tmp_path / "bundle", overwrite=False):
        pytest.fail("the export went on")
    assert entries(tmp_path) == []


def test_a_terminated_export_cleans_up_after_itself(llama_folder, tmp_path):
    process = started(run_command, "export", "--model", str(llama_folder), "-o", str(tmp_path / "bundle"))
    deadline = time.monotonic() + 60
    while not entries(tmp_path):
        assert process.is_alive(), "the export ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.terminate()
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM
    assert entries(tmp_path) == []


def run_command(*arguments):
    """Run the command line in this process, as its script does, and show nothing."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    sys.argv = ["edgeformer", *arguments]
    start.main()


def test_an_export_that_still_runs_is_left_alone(tmp_path):
    with staged(tmp_path / "bundle", overwrite=False) as first:
        (first / FILE_NAME).write_text("{}")
        with pytest.raises(ExportError, match="exists"), staged(tmp_path / "bundle", overwrite=False) as second:
            assert first.exists()
            assert second != first
            (tmp_path / "bundle").mkdir()  # somebody else was faster
        (tmp_path / "bundle").rmdir()
    assert entries(tmp_path) == ["bundle"]


def test_a_bundle_survives_a_kill_between_two_renames(llama_bundle, tmp_path):
    partial = tmp_path / ".bundle.abc.partial"
    partial.mkdir()
    shutil.copytree(llama_bundle, partial / "replaced")
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "bundle", overwrite=True):
        raise KeyboardInterrupt
    assert entries(tmp_path) == ["bundle"]
    assert verify(tmp_path / "bundle").passed


def test_a_bundle_is_replaced_only_when_asked(llama_folder, llama_bundle, tmp_path):
    destination = tmp_path / "bundle"
    shutil.copytree(llama_bundle, destination)
    with pytest.raises(ExportError, match=r"bundle exists\. Replace it with --overwrite, or choose another --output"):
        export_model(llama_folder, destination, verify=None)
    export_model(llama_folder, destination, precision="fp16", verify=None, overwrite=True)
    assert load(destination).manifest.plan.precision == "fp16"
    assert entries(tmp_path) == ["bundle"]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_bundle_that_holds_files_of_others_is_not_replaced(llama_folder, llama_bundle, tmp_path, damaged):
    destination = Path(shutil.copytree(llama_bundle, tmp_path / "bundle"))
    (destination / "photos").mkdir()
    (destination / "photos" / "one.jpg").write_text("precious")
    (destination / "prepacked").mkdir()  # ours
    if damaged:
        (destination / FILE_NAME).write_text("{}")
    expected = (
        "nothing tells which of its files an export wrote" if damaged else r"no export wrote: photos/one\.jpg\. Move"
    )
    with pytest.raises(ExportError, match=expected):
        export_model(llama_folder, destination, verify=None, overwrite=True)
    assert (destination / "photos" / "one.jpg").exists() and entries(tmp_path) == ["bundle"]


def test_a_folder_that_is_no_bundle_is_never_replaced(llama_folder, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_text("precious")
    with pytest.raises(ExportError, match="exists and is not a bundle; it is left alone"):
        export_model(llama_folder, tmp_path / "photos", overwrite=True)
    assert entries(tmp_path / "photos") == ["one.jpg"]


def test_a_disk_that_is_too_small_is_noticed_before_writing(llama_folder, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(bundle_module.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ExportError, match=r"the bundle needs 0\.\d\d GB and the disk of .* has 0\.00 GB free"):
        export_model(llama_folder, tmp_path / "bundle")
    assert entries(tmp_path) == []


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(llama_folder, tmp_path, monkeypatch):
    def full(tensor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle_module, "_bytes", full)
    with pytest.raises(ExportError, match=r"writing .*bundle failed: No space left on device\. Nothing was kept"):
        export_model(llama_folder, tmp_path / "bundle")
    assert entries(tmp_path) == []


def test_an_output_below_a_file_is_said(llama_folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot write beside .*Choose another --output"):
        export_model(llama_folder, tmp_path / "file" / "bundle")


@pytest.fixture
def copy(llama_bundle, tmp_path):
    return Path(shutil.copytree(llama_bundle, tmp_path / "copy"))


def test_load_names_a_truncated_file(copy):
    data = copy / "onnx" / "model.onnx_data"
    os.truncate(data, data.stat().st_size - 1)
    with pytest.raises(BundleError, match=r"is damaged: onnx/model\.onnx_data has [\d,]+ bytes instead of [\d,]+"):
        load(copy)


def test_load_names_a_missing_file(copy):
    (copy / "onnx" / "model.onnx").unlink()
    with pytest.raises(BundleError, match=r"onnx/model\.onnx is missing"):
        load(copy)


def test_verify_names_a_file_edited_without_a_change_of_size(copy):
    data = copy / "onnx" / "model.onnx_data"
    content = bytearray(data.read_bytes())
    content[1000] ^= 1
    data.write_bytes(content)
    load(copy)  # sizes are right, and hashing a large model on every load would cost too much
    with pytest.raises(BundleError, match=r"model\.onnx_data was changed after the export: its SHA-256"):
        verify(copy)


def test_verify_refuses_a_manifest_that_was_rewritten(copy, llama_folder):
    """Whoever rewrites the hash, too, is found out by the certificate, in the manifest and in its own file."""
    data, report = copy / "onnx" / "model.onnx_data", copy / "parity" / "report.json"
    content = bytearray(data.read_bytes())
    content[4096 * 3 : 4096 * 3 + 400] = bytes(400)
    data.write_bytes(content)
    manifest = json.loads((copy / FILE_NAME).read_text())

    def rewrite():
        (copy / FILE_NAME).write_text(json.dumps(manifest))

    manifest["files"]["onnx/model.onnx_data"]["sha256"] = sha256(data)
    rewrite()
    with pytest.raises(BundleError, match=r"was rewritten .* not about the files that it lists \(onnx/model.onnx_data"):
        verify(copy)
    manifest["parity"]["hashes"]["onnx/model.onnx_data"] = sha256(data)
    rewrite()
    with pytest.raises(BundleError, match="was rewritten after the export: its parity certificate is not about"):
        verify(copy)
    report.write_text(report.read_text() + " ")
    manifest["files"]["parity/report.json"] = {"bytes": report.stat().st_size, "sha256": sha256(report)}
    rewrite()
    with pytest.raises(BundleError, match=r"not about the files that it lists \(parity/report.json\)"):
        verify(copy)


def test_a_bundle_without_certificate_is_compared(copy, llama_folder):
    """Whoever leaves the certificate out, too, is found out by the checkpoint alone."""
    data = copy / "onnx" / "model.onnx_data"
    content = bytearray(data.read_bytes())
    content[4096 * 3 : 4096 * 3 + 400] = bytes(400)
    data.write_bytes(content)
    manifest = json.loads((copy / FILE_NAME).read_text())
    manifest["files"]["onnx/model.onnx_data"]["sha256"] = sha256(data)
    (copy / FILE_NAME).write_text(json.dumps(manifest | {"parity": None}))
    assert verify(copy).passed  # its graph does compute what its weights say
    assert not verify(copy, against=llama_folder).passed


def test_a_bundle_of_hard_links_is_refused_by_verify_alone(llama_bundle, tmp_path):
    """`cp -l` makes such bundles; onnx and onnx_ir raise errors of their own for them."""
    shutil.copytree(llama_bundle, tmp_path / "bundle")
    linked = Path(shutil.copytree(tmp_path / "bundle", tmp_path / "linked", copy_function=os.link))
    with pytest.raises(BundleError, match="has several hard links, .* Verify a copy: cp -r"):
        verify(linked)
    load(linked)


def test_stored_weights_are_those_of_the_checkpoint(llama_bundle, llama_folder):
    import torch

    from edgeformer.checkpoints.source import open_source
    from edgeformer.export.bundle.stored_weights import StoredWeights
    from edgeformer.manifest.manifest import Manifest
    from edgeformer.models.model_spec import model_spec_of

    manifest = Manifest.read(llama_bundle)
    stored = StoredWeights(llama_bundle, manifest, model_spec_of(manifest.model))
    original = open_source(llama_folder).weights()
    assert set(stored) == set(original)
    for name in original:
        assert torch.equal(stored[name], original[name]), name


def test_small_tensors_share_pages_and_large_ones_start_at_one(llama_bundle):
    import onnx

    model = onnx.load(llama_bundle / "onnx" / "model.onnx", load_external_data=False)
    external = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in model.graph.initializer
        if tensor.external_data
    ]
    assert {entry["location"] for entry in external} == {"model.onnx_data"}
    for entry in external:
        assert int(entry["offset"]) % (4096 if int(entry["length"]) >= 4096 else 64) == 0


def test_nothing_of_the_machine_is_in_a_bundle(llama_bundle, llama_folder):
    for path in llama_bundle.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert str(llama_folder.parent).encode() not in content, path
            assert b"site-packages" not in content, path


def test_clients_read_the_context_under_the_familys_name(make_model, tmp_path):
    sizes = {"vocab_size": 131, "n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 64}
    folder = make_model("gpt2", **sizes, bos_token_id=1, eos_token_id=2)
    bundle = export_model(folder, tmp_path / "bundle", context_length=40, verify=None).path
    config = json.loads((bundle / "config.json").read_text())
    assert config["n_positions"] == 40
    assert "max_position_embeddings" not in config
    assert json.loads((bundle / "genai_config.json").read_text())["model"]["context_length"] == 40
