"""Kills and full disks leave nothing half written, and the tool that says so finds what is."""

import shutil

import pytest
from reliability import faults


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("2026-11-24: there is no C compiler, which the full disk takes")
    return faults.compile_full_disk(tmp_path_factory.mktemp("full"))


def test_shards_are_whole_or_not_there(library, tmp_path):
    ended = faults.run("shards", tmp_path, full=faults.Full(library, 1_000_000))
    assert ended.code == 1 and ended.stderr.endswith(": No space left on device.\n"), ended
    assert faults.not_whole("shards", tmp_path, leftovers=False) == ""
    assert 10 < len(list((tmp_path / "shards" / "commits").iterdir())) < 100
    assert faults.run_case("shards", tmp_path, None, faults.Full(library, 50_000)) == ("refused", "")
    assert faults.run_case("shards", tmp_path, 0.0, None) == ("killed", "")


def test_what_is_not_whole_is_found(tmp_path):
    commits = tmp_path / "shards" / "commits"
    commits.mkdir(parents=True)
    (commits / "00000001").write_text("x")
    assert faults.not_whole("shards", tmp_path, leftovers=True) == "part-00000001 is not what its commit says"
    (commits / "00000001").unlink()
    (commits / ".a.tmp").touch()
    assert faults.not_whole("shards", tmp_path, leftovers=False) == ".a.tmp was left behind"
    assert faults.not_whole("shards", tmp_path, leftovers=True) == ""


CASES = range(2, 5)
"""A full disk and two kills, one for each command; tools/reliability/faults.py runs any number of them."""


@pytest.mark.slow
def test_bundles_are_whole_or_not_there(library, tiny_bundle, tmp_path):
    shutil.copytree(tiny_bundle, tmp_path / "tiny-llama")
    names = ["export", "overwrite", "optimize"]
    result = faults.run_cases(tmp_path, CASES, faults.measure(tmp_path, names), library)
    assert result["faults"] == []
    assert result["counts"] == {"optimize refused": 1, "export killed": 1, "overwrite killed": 1}
