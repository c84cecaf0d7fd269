"""The benchmark of forms reports the throughput of every workload, and fails if op sets compute different logits."""

import json

import click
import numpy as np
import pytest
from benchmarks.decoding import bench_forms
from checkpoints import random_checkpoint
from click.testing import CliRunner


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    result = CliRunner().invoke(random_checkpoint.main, ["tiny", "--output", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


@pytest.mark.parametrize(("forms", "bytes_of_first"), [("op-sets", 4), ("caches", 1)])
def test_every_form_is_measured(checkpoint, tmp_path, forms, bytes_of_first):
    file, names = tmp_path / "report.json", list(bench_forms.FORMS[forms])
    options = ["--prompt", "5", "--past", "3", "--past", "9", "--steps", "2", "--rounds", "1", "--threads", "1"]
    result = CliRunner().invoke(bench_forms.main, [forms, str(checkpoint), *options, "--json", str(file)])
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert data["capacity"] == 12
    assert list(data["workloads"]) == ["prompt of 5", "steps behind 3", "steps behind 9"]
    for figures in data["workloads"].values():
        assert list(figures["tokens_per_second"]) == names
        assert list(figures["speedup_over"]) == names[1:]
    sizes = data["cache_bytes_per_token"]
    assert sizes[names[-1]] * bytes_of_first == 4 * sizes[names[0]] > 0
    assert forms == "caches" or 0 < max(data["largest_difference"].values()) < 1e-5
    assert names[-1] in result.stdout


def test_other_logits_are_no_speed():
    class Fake:
        def __init__(self, scale):
            self.scale = scale
            self.manifest = type("Manifest", (), {"vocab_size": 7})

        def forward(self, tokens):
            return self.scale * np.ones((len(tokens), 7), np.float32)

    with pytest.raises(click.ClickException, match="^portable differs by 1.0e-01 of the largest logit; no speed"):
        bench_forms.check_same_logits({"ort": Fake(1.0), "portable": Fake(1.1)}, 3)
