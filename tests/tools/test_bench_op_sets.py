"""The op-set benchmark reports the throughput of every workload, and fails if op sets compute different logits."""

import json

import click
import numpy as np
import pytest
from benchmarks.decoding import bench_op_sets
from checkpoints import random_checkpoint
from click.testing import CliRunner


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    result = CliRunner().invoke(random_checkpoint.main, ["tiny", "--output", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


def test_every_form_is_measured(checkpoint, tmp_path):
    file = tmp_path / "report.json"
    options = ["--prompt", "5", "--past", "3", "--past", "9", "--steps", "2", "--rounds", "1", "--threads", "1"]
    result = CliRunner().invoke(bench_op_sets.main, [str(checkpoint), *options, "--json", str(file)])
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert data["capacity"] == 12
    assert list(data["workloads"]) == ["prompt of 5", "steps behind 3", "steps behind 9"]
    for figures in data["workloads"].values():
        assert list(figures["tokens_per_second"]) == list(bench_op_sets.FORMS)
        assert list(figures["ort_over"]) == list(bench_op_sets.FORMS)[1:]
    assert 0 < max(data["largest_difference"].values()) < 1e-5
    assert "portable, static" in result.stdout


def test_other_logits_are_no_speed():
    class Fake:
        def __init__(self, scale):
            self.scale = scale
            self.manifest = type("Manifest", (), {"vocab_size": 7})

        def forward(self, tokens):
            return self.scale * np.ones((len(tokens), 7), np.float32)

    with pytest.raises(click.ClickException, match="^portable differs by 1.0e-01 of the largest logit; no speed"):
        bench_op_sets.check_same_logits({"ort": Fake(1.0), "portable": Fake(1.1)}, 3)
