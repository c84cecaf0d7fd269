"""The benchmark of prefixes reports both turns of both engines, and their ratio."""

import json

from benchmarks.decoding import bench_prefixes
from click.testing import CliRunner


def test_both_turns_are_measured(tiny_checkpoint, tmp_path):
    file = tmp_path / "report.json"
    options = ["--prompt", "20", "--answer", "3", "--message", "2", "--rounds", "2", "--threads", "1"]
    result = CliRunner().invoke(bench_prefixes.main, [str(tiny_checkpoint), *options, "--json", str(file)])
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert list(data["systems"]) == ["kept", "not kept"]
    for figures in data["systems"].values():
        assert list(figures["milliseconds"]) == ["first turn", "second turn"]
        assert figures["ratio"]["median"] > 0
    assert "second / first" in result.stdout
