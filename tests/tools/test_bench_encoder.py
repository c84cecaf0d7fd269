"""The encoder benchmark measures four workloads, and fails if systems compute different states."""

import json

import numpy as np
import pytest
from benchmarks import bench_encoder
from click.testing import CliRunner

OPTIONS = ["--geometry", "tiny", "--short", "4", "--long", "16", "--batch", "3", "--rounds", "1", "--threads", "1"]


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch):
    monkeypatch.setattr(bench_encoder, "ROUND_SECONDS", 0.01)


def run(*arguments):
    return CliRunner().invoke(bench_encoder.main, [str(argument) for argument in arguments])


def test_the_report_holds_speeds_and_ratios_of_every_workload(tmp_path):
    file = tmp_path / "report.json"
    result = run(*OPTIONS, "--attention", "sdpa", "--attention", "eager", "--json", file)

    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert list(data["workloads"]) == ["1 × 4", "1 × 16", "3 × 16", "3 × 8…16"]
    for figures in data["workloads"].values():
        speeds = figures["tokens_per_second"]
        assert list(speeds) == ["edgeformer", "transformers sdpa", "transformers eager"]
        assert speeds["edgeformer"]["median"] == pytest.approx(
            1000 * figures["tokens"] / figures["milliseconds"]["edgeformer"]
        )
        assert list(figures["edgeformer_over"]) == ["transformers sdpa", "transformers eager"]
        assert all(difference < 1e-4 for difference in figures["largest_difference"].values())
    assert data["environment"]["onnxruntime"]
    assert "transformers eager" in result.stdout


def test_by_default_transformers_has_its_default_attention():
    result = run(*OPTIONS)

    assert result.exit_code == 0, result.output
    assert "transformers sdpa" in result.stdout
    assert "transformers eager" not in result.stdout


def test_the_ragged_batch_has_the_shortest_and_the_longest_text():
    ragged = bench_encoder.workloads(16, 128, 32, 512)["32 × 8…128"]
    lengths = [len(text) for text in ragged]

    assert len(lengths) == 32
    assert (min(lengths), max(lengths)) == (8, 128)
    assert len(set(lengths)) > 8


def test_padding_is_not_compared_and_a_text_s_own_tokens_are():
    ours, other = np.zeros((2, 2, 3, 4), np.float32)
    other[1, 2] = 7  # behind the end of the second text
    assert bench_encoder.largest_difference(ours, other, [[1, 2, 3], [1, 2]]) == 0
    other[1, 1, 0] = 0.5
    assert bench_encoder.largest_difference(ours, other, [[1, 2, 3], [1, 2]]) == 0.5
    other[1, 0, 0] = np.nan
    assert np.isnan(bench_encoder.largest_difference(ours, other, [[1, 2, 3], [1, 2]]))


@pytest.mark.parametrize("fault", [0.01, np.nan])
def test_states_that_differ_fail_loudly(fault):
    def honest(texts):
        return np.zeros((1, 3, 4), np.float32)

    def faulty(texts):
        return honest(texts) + np.float32(fault)

    systems = {"edgeformer": honest, "other": faulty}
    with pytest.raises(bench_encoder.click.ClickException, match="the states of edgeformer and other differ by"):
        bench_encoder.measure(systems, [[1, 2, 3]], rounds=1)


def test_a_round_runs_once_at_least_and_counts_with_its_median(monkeypatch):
    runs = []
    monkeypatch.setattr(bench_encoder, "ROUND_SECONDS", 1e-9)

    assert bench_encoder.time_batch(runs.append, [[1]]) > 0
    assert runs == [[[1]]]
