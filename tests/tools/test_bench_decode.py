"""The decode benchmark measures three loops that do the same work, and fails if they do not."""

import json

import pytest
from benchmarks.decoding import bench_decode
from click.testing import CliRunner

OPTIONS = ["--prompt", "8", "--new", "8", "--rounds", "1", "--threads", "1"]


def run(*arguments):
    return CliRunner().invoke(bench_decode.main, [str(argument) for argument in arguments])


def test_the_report_holds_speeds_and_ratios_of_all_three_loops(tiny_bundle, tiny_checkpoint, tmp_path):
    file = tmp_path / "report.json"
    result = run(tiny_bundle, "--checkpoint", tiny_checkpoint, *OPTIONS, "--json", file)

    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert list(data["tokens_per_second"]) == ["edgeformer", "bare", "eager"]
    for speeds in data["tokens_per_second"].values():
        assert speeds["prefill"]["median"] > 0
        assert speeds["decode"]["low"] <= speeds["decode"]["median"] <= speeds["decode"]["high"]
    ours, bare = (data["tokens_per_second"][name]["decode"]["median"] for name in ("edgeformer", "bare"))
    assert data["edgeformer_over"]["bare"]["decode"]["median"] == pytest.approx(ours / bare)
    assert data["same_leading_tokens"] == {"bare": 8, "eager": 8}
    assert data["environment"]["onnxruntime"]


def test_without_a_checkpoint_the_bare_graph_is_compared(tiny_bundle):
    result = run(tiny_bundle, *OPTIONS)

    assert result.exit_code == 0, result.output
    assert "8 of 8 tokens agree with bare" in result.stdout
    assert "eager" not in result.stdout


def test_an_end_of_text_token_ends_no_run(tiny_bundle):
    """The measured loop ignores the bundle's end-of-text tokens."""
    from edgeformer.runtime import load

    model = load(tiny_bundle, threads=1)
    first = bench_decode.edgeformer_loop(model)([1, 2, 3], 8).tokens[0]
    object.__setattr__(model.manifest.tokens, "eos", (first,))

    assert len(model.generate([1, 2, 3], max_new_tokens=8).token_ids) == 1
    assert len(bench_decode.edgeformer_loop(model)([1, 2, 3], 8).tokens) == 8


def test_loops_that_disagree_fail_loudly(tiny_bundle, monkeypatch, tmp_path):
    honest = bench_decode.bare_loop

    def feeds_another_prompt(session):
        bare = honest(session)
        return lambda prompt, new: bare(prompt[::-1], new)

    monkeypatch.setattr(bench_decode, "bare_loop", feeds_another_prompt)
    result = run(tiny_bundle, *OPTIONS, "--json", tmp_path / "report.json")

    assert result.exit_code == 1
    assert not (tmp_path / "report.json").exists()
    assert result.stdout == ""
    assert "the loops disagree from new token" in result.stderr


def test_a_loop_that_stops_early_does_not_agree():
    with pytest.raises(bench_decode.click.ClickException, match="disagree from new token 2"):
        bench_decode.check_same_tokens([5, 6], [5, 6, 7])
