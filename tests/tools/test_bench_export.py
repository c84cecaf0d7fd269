"""The export benchmark reports duration and memory, and removes its files."""

import json
import sys

import pytest
from benchmarks import bench_export
from click.testing import CliRunner

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


def run(*arguments):
    return CliRunner().invoke(bench_export.main, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_the_report_tells_private_memory_from_mapped_files(tiny_checkpoint, tmp_path):
    work, file = tmp_path / "work", tmp_path / "report.json"
    work.mkdir()
    result = run("--model", tiny_checkpoint, "--workdir", work, "--precision", "fp16", "--no-verify", "--json", file)

    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert data["precision"] == "fp16"
    assert data["export_seconds"] > 0
    assert not data["verified"]
    peaks = data["peak_bytes"]
    # Every process that imports torch has more than this of both.
    assert min(peaks["private"], peaks["file_backed"]) > 20e6
    assert max(peaks["private"], peaks["file_backed"]) <= peaks["total"]
    assert "every 20 ms" in data["method"]
    assert not list(work.iterdir())


def test_a_model_that_cannot_be_exported_is_one_line(tmp_path):
    result = run("--model", tmp_path / "absent", "--workdir", tmp_path)

    assert result.exit_code == 1
    assert "there is no model" in result.stderr
    assert not list(tmp_path.iterdir())
