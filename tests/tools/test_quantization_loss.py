"""tools/quantization_loss.py: figures by hand, and that a worse recipe is told to be worse."""

import json
import math

import numpy as np
import pytest
import quantization_loss
from click.testing import CliRunner


def test_divergence_agreement_and_perplexity_by_hand(tmp_path, monkeypatch):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx_data").write_bytes(bytes(10))
    truth = np.log([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
    ours = np.log([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    answers = {tmp_path: ours, tmp_path / "whole": truth}
    monkeypatch.setattr(quantization_loss, "distributions", lambda bundle, pieces: iter([answers[bundle]]))

    loss = quantization_loss.compare(tmp_path, tmp_path / "whole", [[0, 1]])
    assert loss.bytes == 10
    assert loss.kl == pytest.approx((0 + 0.25 * math.log(2)) / 2)  # 0.25 ln ½ + 0.5 ln 2 at the second place
    assert loss.top1 == 0.5
    assert loss.perplexity == 1  # of token 1 after token 0, of which both say 0.25
    monkeypatch.setattr(quantization_loss, "distributions", lambda bundle, pieces: iter([answers[bundle][::-1]]))
    assert quantization_loss.compare(tmp_path, tmp_path / "whole", [[0, 1]]).perplexity == pytest.approx(2)


def test_fewer_bits_lose_more(tmp_path, monkeypatch):
    monkeypatch.setattr(quantization_loss, "PROBLEMS", 30)
    file = tmp_path / "loss.json"
    names = ("int4 in blocks of 32, mse", "int8 in blocks of 128, nearest", "bf16")
    only = [part for name in names for part in ("--only", name)]
    result = CliRunner().invoke(quantization_loss.main, ["tiny-llama", *only, "--json", str(file)])

    assert result.exit_code == 0, result.output
    losses = json.loads(file.read_text())["losses"]
    assert losses["bf16"]["kl"] == 0 and losses["bf16"]["top1"] == 1  # the checkpoint is bf16
    four, eight = losses["int4 in blocks of 32, mse"], losses["int8 in blocks of 128, nearest"]
    assert 0 < 5 * eight["kl"] < four["kl"] < 1
    assert four["bytes"] < eight["bytes"] < losses["bf16"]["bytes"]


def test_an_unknown_recipe_is_an_error_that_lists_them():
    result = CliRunner().invoke(quantization_loss.main, ["tiny-llama", "--only", "int3"])
    assert result.exit_code == 1 and "no recipe is called so; there are: bf16; " in result.output
