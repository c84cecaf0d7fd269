"""The benchmark of kernels compares sessions with and without them, and says where there are none."""

import json

import pytest
from benchmarks import bench_kernels
from benchmarks.bench_decode import Run
from click.testing import CliRunner

from edgeformer.runtime import kernels

OPTIONS = ["--prompt", "8", "--new", "4", "--rounds", "1", "--threads", "1"]


def run(*arguments):
    return CliRunner().invoke(bench_kernels.main, [str(argument) for argument in arguments])


def test_it_says_what_is_missing(tiny_bundle, monkeypatch):
    monkeypatch.setattr(bench_kernels, "find_library", lambda: "edgeformer-kernels is not installed")
    result = run(tiny_bundle, *OPTIONS)
    assert result.exit_code == 1
    assert "edgeformer-kernels is not installed" in result.output


def test_three_contenders_are_loaded_with_their_switches(tiny_bundle, monkeypatch):
    """Without a library, all of them run the functions; which switch each was loaded with is what counts here."""
    seen = []
    monkeypatch.setattr(bench_kernels, "find_library", lambda: None)
    monkeypatch.setattr(kernels, "find_library", lambda: seen.append(kernels.os.environ[kernels.SWITCH]) or "absent")
    monkeypatch.setenv(kernels.SWITCH, "0")
    result = run(tiny_bundle, *OPTIONS, "--json")
    assert result.exit_code == 0, result.output
    assert seen == ["session", "team"], "0 does not look for a library"
    assert kernels.os.environ[kernels.SWITCH] == "0"
    assert list(json.loads(result.stdout)["contenders"]) == ["functions", "kernels", "team"]
    assert "speedup" in run(tiny_bundle, *OPTIONS).stdout


def test_speedups_are_of_one_round():
    runs = {"functions": [Run([1, 2, 3], 2.0, 4.0)], "kernels": [Run([1, 2, 3], 1.0, 1.0)]}
    data = bench_kernels.report(runs, 10**9)
    assert (data["kernels"]["prefill_speedup"]["median"], data["kernels"]["decode_speedup"]["median"]) == (2, 4)
    assert data["functions"]["decode_speedup"] is None
    assert data["kernels"]["bytes_per_second"] == pytest.approx(2e9)
