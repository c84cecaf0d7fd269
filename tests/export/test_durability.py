"""Bundles are on the disk before they have their names, and a bundle that is replaced is never gone in between."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgeformer.errors import ExportError
from edgeformer.export.bundle import staging
from edgeformer.manifest.manifest import FILE_NAME

PROGRAM = """
import sys
from pathlib import Path
from edgeformer.export.bundle.staging import staged
with staged(Path(sys.argv[1]), overwrite=False) as folder:
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"graph")
    (folder / "edgeformer.json").write_text("{}")
"""


def traced(tmp_path, program=PROGRAM):
    """The system calls of a process that writes, by default a bundle, or None where processes cannot be traced."""
    if shutil.which("strace") is None:
        return None
    line = ["strace", "-f", "-y", "-e", "trace=fsync,rename,renameat,renameat2", "-o", tmp_path / "trace"]
    line += [sys.executable, "-c", program, tmp_path / "bundle"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return (tmp_path / "trace").read_text().splitlines() if done.returncode == 0 else None


def test_files_reach_the_disk_before_they_get_their_name(tmp_path):
    calls = traced(tmp_path)
    if calls is None:
        pytest.skip("2026-11-24: strace is not installed, or may not trace here")
    calls = [call for call in calls if str(tmp_path) in call]
    (named,) = (place for place, call in enumerate(calls) if "rename" in call and '/bundle"' in call)
    synced = [re.search(r"fsync\(\d+<([^>]*)>\)\s*= 0", call) for call in calls]
    before = {Path(found[1]).name for found in synced[:named] if found}
    assert {"model.onnx", "onnx", FILE_NAME} <= before and any(name.endswith(".partial") for name in before)
    assert [found[1] for found in synced[named:] if found] == [str(tmp_path)], "and the name itself, behind it"


@pytest.fixture
def bundle(llama_bundle, tmp_path):
    return Path(shutil.copytree(llama_bundle, tmp_path / "bundle"))


def replace(bundle):
    with staging.staged(bundle, overwrite=True) as folder:
        (folder / FILE_NAME).write_text("{}")


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_bundle_is_replaced_whole(bundle, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(staging, "_exchange", lambda first, second: False)
    replace(bundle)
    assert [path.name for path in bundle.iterdir()] == [FILE_NAME]
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_bundle_comes_back_if_its_successor_fails(bundle, monkeypatch, error):
    monkeypatch.setattr(staging, "_exchange", lambda first, second: False)
    rename, names = Path.rename, sorted(path.name for path in bundle.iterdir())

    def fail(path, target):
        if path.name.endswith(".partial"):
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises((ExportError, KeyboardInterrupt)):
        replace(bundle)
    assert sorted(path.name for path in bundle.iterdir()) == names
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


SHARD = """
import sys
from edgeformer.batch.storage import Folder
Folder(sys.argv[1]).write("part-00000000", b"rows")
"""


def test_a_shard_reaches_the_disk_before_it_gets_its_name(tmp_path):
    calls = traced(tmp_path, SHARD)
    if calls is None:
        pytest.skip("2026-11-24: strace is not installed, or may not trace here")
    calls = [call for call in calls if str(tmp_path) in call]
    (named,) = (place for place, call in enumerate(calls) if "rename" in call and '/part-00000000"' in call)
    synced = [re.search(r"fsync\(\d+<([^>]*)>\)\s*= 0", call) for call in calls]
    assert [Path(found[1]).suffix for found in synced[:named] if found] == [".tmp"]
    assert [found[1] for found in synced[named:] if found] == [str(tmp_path / "bundle")], "and the name, behind it"
