"""The benchmark of speculation writes its own texts, with and without drafts."""

import json

from benchmarks.decoding import bench_speculation
from click.testing import CliRunner

from edgeformer.runtime import load


def test_both_texts_are_written_with_and_without_drafts(tiny_bundle, tmp_path):
    options = ["--prompt", "48", "--new", "32", "--rounds", "1", "--threads", "1", "--no-kernels"]
    file = tmp_path / "report.json"
    result = CliRunner().invoke(bench_speculation.main, [str(tiny_bundle), *options, "--json", str(file)])
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert list(data["tasks"]) == ["edit", "free"]
    for figures in data["tasks"].values():
        assert list(figures["tokens_per_second"]) == ["plain", "lookup"]
        counts = figures["speculation"]
        assert counts["runs"] + counts["accepted"] == 31
    assert list(data["steps_of_runs"]) == [str(count) for count in bench_speculation.RUNS]


def test_clients_of_an_engine_write_their_own_texts(tiny_bundle):
    model = load(tiny_bundle, threads=1)
    texts = [bench_speculation.tasks(131, 32, 24, place * 32)["edit"] for place in range(2)]
    assert texts[0] != texts[1]
    plain, lookup = (bench_speculation.write_together(model, texts, drafted) for drafted in (0, 6))
    assert plain.tokens == lookup.tokens == 2 * 23
    assert plain.speculation.drafted == 0


def test_the_text_to_edit_repeats_its_prompt():
    found = bench_speculation.tasks(50_000, 64, 48)
    edit, free = found["edit"], found["free"]
    same = sum(a == b for a, b in zip(edit.text, edit.prompt[-48:], strict=True))
    assert 44 <= same <= 47
    assert free.text[:16] != edit.prompt[:16] and len(free.text) == 48


def test_a_row_writes_what_it_is_told(tiny_bundle):
    model = load(tiny_bundle, threads=1)
    task = bench_speculation.Task([3, 4, 5], [9, 8, 7, 9, 8, 7, 9, 8])
    run = bench_speculation.write(model, task, 4)
    assert run.tokens == 7 and run.speculation.runs + run.speculation.accepted == 7


def test_a_text_longer_than_its_prompt_is_refused(tiny_bundle):
    result = CliRunner().invoke(bench_speculation.main, [str(tiny_bundle), "--prompt", "8", "--new", "16"])
    assert result.exit_code == 2 and "the text to copy has 8 tokens" in result.output
