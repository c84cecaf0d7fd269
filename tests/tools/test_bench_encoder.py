"""The encoder benchmark measures four workloads, and fails if systems compute different states or graphs."""

import json

import numpy as np
import pytest
from benchmarks.encoders import bench_encoder, optimized_bert
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


@pytest.fixture
def _no_kernels(monkeypatch):
    monkeypatch.delenv("EDGEFORMER_KERNELS", raising=False)
    monkeypatch.setattr(
        "edgeformer.runtime.sessions.kernels.find_library", lambda: "edgeformer-kernels is not installed"
    )


@pytest.mark.usefixtures("_no_kernels")
def test_int8_is_compared_with_the_optimized_and_quantized_bert(tmp_path):
    file = tmp_path / "report.json"
    result = run(*OPTIONS, "--precision", "int8", "--optimized-bert", "--json", file)

    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert "PerToken" in data["kernels"] and "not installed" in data["kernels"]
    for figures in data["workloads"].values():
        assert list(figures["tokens_per_second"]) == ["edgeformer", "transformers sdpa", "onnxruntime"]
        # Rounded, so not equal; the same model, so not far away.
        assert all(1e-3 < difference < 0.3 for difference in figures["largest_difference"].values())


def test_the_optimized_bert_in_float32_is_the_same_model():
    result = run(*OPTIONS, "--optimized-bert", "--no-kernels")

    assert result.exit_code == 0, result.output
    assert "onnxruntime" in result.stdout


@pytest.mark.usefixtures("_no_kernels")
def test_kernels_that_are_asked_for_must_run():
    result = run(*OPTIONS, "--precision", "int8", "--kernels")

    assert result.exit_code == 1
    assert "no kernels run in int8, and --kernels asks for them" in result.output
    assert "edgeformer-kernels is not installed" in result.output


def test_an_optimizer_that_leaves_out_a_layer_is_no_opponent():
    fused = {"EmbedLayerNormalization": 1, "Attention": 2, "SkipLayerNormalization": 4, "BiasGelu": 2}
    optimized_bert.check_fused(fused, layers=2)
    with pytest.raises(bench_encoder.click.ClickException, match="'Attention': 1.* of a BERT of 2 layers"):
        optimized_bert.check_fused(fused | {"Attention": 1}, layers=2)
