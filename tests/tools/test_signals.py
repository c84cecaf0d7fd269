"""Signals at random moments end commands quietly, and the tool that says so finds endings that are not quiet."""

import shutil
import signal

import pytest
from reliability import signals


@pytest.fixture(scope="module")
def bundles(tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    shutil.copytree(tiny_bundle, folder / "tiny-llama")
    return folder


def test_signals_at_random_moments_end_commands_quietly(bundles):
    seconds = signals.measure(bundles, ["models", "info"])
    result = signals.run_cases(bundles, range(10), seconds)
    assert result["faults"] == []
    assert set(result["counts"]) <= {"ended", "done", "python"} and sum(result["counts"].values()) == 10


TRACEBACK = 'Traceback (most recent call last):\n  File "{}", line 1, in <module>\nKeyboardInterrupt\n'


@pytest.mark.parametrize(
    ("code", "number", "stderr", "kind"),
    [
        (130, signal.SIGINT, "\nAborted!\n", "ended"),
        (-signal.SIGTERM, signal.SIGTERM, "", "ended"),
        (0, signal.SIGTERM, "", "done"),
        (1, signal.SIGINT, "", "code"),
        (143, signal.SIGINT, "", "code"),
        (130, signal.SIGINT, "error: a\nb\n", "raw"),
        (130, signal.SIGINT, TRACEBACK.format(f"{signals.ROOT}/edgeformer/cli/export.py"), "raw"),
        (130, signal.SIGINT, TRACEBACK.format(f"{signals.ROOT}/edgeformer/cli/start.py"), "python"),
        (1, signal.SIGINT, TRACEBACK.format("<frozen site>"), "python"),
        (1, signal.SIGTERM, TRACEBACK.format("<frozen site>"), "raw"),
    ],
)
def test_every_ending_is_told_from_others(code, number, stderr, kind):
    assert signals.judge(code, number, stderr).kind == kind


def test_what_is_not_whole_is_found(bundles, tmp_path):
    assert signals.half(bundles) == ""
    assert signals.half(tmp_path) == "the bundle that was there is gone"
    shutil.copytree(bundles / "tiny-llama", tmp_path / "tiny-llama")
    assert signals.half(tmp_path) == ""
    (tmp_path / "made").mkdir()
    assert "made is not a bundle" in signals.half(tmp_path)
    (tmp_path / "made").rename(tmp_path / ".made.x.partial")
    assert signals.half(tmp_path) == ".made.x.partial was left behind"
    assert signals.half(tmp_path, leftovers=True) == ""
    weights = tmp_path / "tiny-llama" / "onnx" / "model.onnx_data"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert "model.onnx_data is not what the manifest says" in signals.half(tmp_path, leftovers=True)
