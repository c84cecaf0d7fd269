"""The cache benchmark reports bytes and throughput of both caches, after every past length."""

import json

from benchmarks.decoding import bench_cache
from click.testing import CliRunner


def test_both_caches_are_measured(tiny_checkpoint, tmp_path):
    file = tmp_path / "report.json"
    options = ["--prompt", "5", "--past", "3", "--past", "9", "--steps", "2", "--rounds", "1", "--threads", "1"]
    result = CliRunner().invoke(bench_cache.main, [str(tiny_checkpoint), *options, "--json", str(file)])
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    sizes = data["bytes_per_token"]
    assert sizes["float32"] == 4 * sizes["int8"] > 0
    assert list(data["workloads"]) == ["prompt of 5", "steps behind 3", "steps behind 9"]
    for figures in data["workloads"].values():
        assert list(figures["tokens_per_second"]) == ["float32", "int8"]
        assert list(figures["int8_over"]) == ["float32"]
    assert "steps behind 9" in result.stdout
