"""The benchmark of drafts by a model's own layer writes the same texts with and without them."""

import json

from benchmarks.decoding import bench_mtp
from click.testing import CliRunner

from edgeformer.runtime.generation.speculation import DraftLength


def test_texts_are_written_with_and_without_drafts(tiny_llama_mtp_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 2)  # whatever runs take
    options = ["--rounds", "1", "--threads", "1", "--new", "40", "--prompt", "Once upon a time", "--no-kernels"]
    file = tmp_path / "report.json"
    result = CliRunner().invoke(bench_mtp.main, [str(tiny_llama_mtp_bundle), *options, "--json", str(file)])
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert data["same_tokens"] is True and data["tokens"] == 40
    counts = data["speculation"]
    assert counts["runs"] + counts["accepted"] == 39 and counts["drafted"] > 0
    assert list(data["steps_of_drafts"]) == [str(count) for count in bench_mtp.DRAFTS]


def test_other_texts_are_found():
    runs = {
        name: [bench_mtp.Run([text], 1.0, bench_mtp.SpeculationStatistics())]
        for name, text in {"plain": [3, 4, 5], "mtp": [3, 4, 6]}.items()
    }
    assert bench_mtp.report(runs)["same_tokens"] is False
    assert bench_mtp.report({**runs, "mtp": runs["plain"]})["same_tokens"] is True
