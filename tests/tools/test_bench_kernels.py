"""The benchmark of kernels compares sessions with and without them, and says where there are none."""

import json

import numpy as np
import onnx
import pytest
from benchmarks.bandwidth import MemoryReader
from benchmarks.decoding import bench_kernels
from benchmarks.decoding.bench_decode import Run
from click.testing import CliRunner
from onnx import helper, numpy_helper

from edgeformer.runtime.sessions import kernels

OPTIONS = ["--prompt", "8", "--new", "4", "--rounds", "1", "--threads", "1"]


def run(*arguments):
    return CliRunner().invoke(bench_kernels.main, [str(argument) for argument in arguments])


def test_it_says_what_is_missing(tiny_bundle, monkeypatch):
    monkeypatch.setattr(bench_kernels, "find_library", lambda: "edgeformer-kernels is not installed")
    result = run(tiny_bundle, *OPTIONS)
    assert result.exit_code == 1
    assert "edgeformer-kernels is not installed" in result.output


def test_three_contenders_are_loaded_with_their_switches(tiny_bundle, monkeypatch, tmp_path):
    """Without a library, all of them run the functions; which switch each was loaded with is what counts here."""
    seen = []
    monkeypatch.setattr(bench_kernels, "find_library", lambda: None)
    monkeypatch.setattr(kernels, "find_library", lambda: seen.append(kernels.os.environ[kernels.SWITCH]) or "absent")
    monkeypatch.setenv(kernels.SWITCH, "0")
    file = tmp_path / "report.json"
    result = run(tiny_bundle, *OPTIONS, "--json", file)
    assert result.exit_code == 0, result.output
    assert seen == ["session", "team"], "0 does not look for a library"
    assert kernels.os.environ[kernels.SWITCH] == "0"
    assert list(json.loads(file.read_text())["contenders"]) == ["functions", "kernels", "team"]
    assert "speedup" in result.stdout


def test_speedups_are_of_one_round():
    runs = {"functions": [Run([1, 2, 3], 2.0, 4.0)], "kernels": [Run([1, 2, 3], 1.0, 1.0)]}
    data = bench_kernels.report(runs, 10**9, [4e9])
    assert (data["kernels"]["prefill_speedup"]["median"], data["kernels"]["decode_speedup"]["median"]) == (2, 4)
    assert data["functions"]["decode_speedup"] is None
    assert data["kernels"]["bytes_per_second"] == pytest.approx(2e9)
    assert data["kernels"]["fraction_of_bandwidth"]["median"] == pytest.approx(0.5)


def test_a_step_reads_all_weights_and_one_row_of_a_table(tmp_path):
    weight = numpy_helper.from_array(np.zeros((8, 4), np.float32), "weight")
    table = numpy_helper.from_array(np.zeros((100, 8), np.float32), "table")
    tied = numpy_helper.from_array(np.zeros((8, 8), np.float32), "tied")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("Gather", ["tied", "ids"], ["z"]),
        helper.make_node("MatMul", ["x", "weight"], ["y"]),
        helper.make_node("MatMul", ["z", "tied"], ["w"]),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], [], [weight, table, tied])), tmp_path / "model.onnx")
    assert bench_kernels.step_bytes(tmp_path / "model.onnx") == 4 * (8 * 4 + 8 * 8)
    onnx.save(
        onnx.load(tmp_path / "model.onnx"), tmp_path / "external.onnx", save_as_external_data=True, size_threshold=0
    )
    assert bench_kernels.step_bytes(tmp_path / "external.onnx") == 4 * (8 * 4 + 8 * 8)


def test_memory_is_read_by_several_threads():
    assert MemoryReader(2, 1 << 20)() > 0
