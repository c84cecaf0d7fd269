"""A model without attention, Mamba-2, in the commands and in its model card: nothing asks it for keys and values."""

import json

import onnxruntime as ort
import pytest
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.export import export_model
from edgeformer.runtime.measure.benchmarking import machine

SIZES = {
    "vocab_size": 131, "hidden_size": 64, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 16, "state_size": 12,
    "n_groups": 2, "conv_kernel": 4, "expand": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "time_step_limit": [0.001, 0.1],
}  # fmt: skip

STATES = 4 * 3 * (3 * (8 * 16 + 2 * 2 * 12) + 8 * 16 * 12)
"""Bytes of the states of one text: in 3 layers, 3 inputs of each channel, and a matrix for each head, in float32."""


@pytest.fixture(scope="module")
def bundle(make_model, tmp_path_factory):
    folder = make_model("mamba2", 3, **SIZES)
    return export_model(folder, tmp_path_factory.mktemp("mamba2") / "bundle", context_length=512, verify=None).path


def run(*arguments):
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_info_counts_states_and_no_cache(bundle):
    shown = json.loads(run("info", bundle, "--json"))
    assert (shown["state_bytes"], shown["cache_bytes_per_token"]) == (STATES, 0)
    assert (shown["bytes"]["attention"], shown["attention_flops_per_token"]) == (0, 0)
    assert "3 recurrent layers" in run("info", bundle)


def test_the_model_card_tells_of_states_and_its_example_runs(bundle, monkeypatch, capsys):
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert "| layers | 3 layers of 64, without attention |" in card
    assert "| cache | 0 bytes a token |" in card
    assert f"| states of fixed size | {STATES:,} bytes a text |" in card
    example = next(part for part in card.split("```python\n")[1:] if "import onnxruntime as ort" in part)
    monkeypatch.chdir(bundle)
    exec(example.split("```")[0], {})
    assert 0 <= int(capsys.readouterr().out) < SIZES["vocab_size"]


def test_bench_measures_it(bundle, monkeypatch):
    monkeypatch.setattr(machine, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "TURN_SECONDS", 1e-9)
    shown = json.loads(run("bench", bundle, "--prompt", 16, "--new", 4, "--rounds", 1, "--json"))
    assert [workload["tokens"] for workload in shown["workloads"]] == [16]
    assert shown["workloads"][0]["decode"]["tokens_per_second"]["median"] > 0


def test_its_graph_takes_states_only(bundle):
    names = {tensor.name for tensor in ort.InferenceSession(bundle / "onnx" / "model.onnx").get_inputs()}
    assert {name for name in names if name.startswith("past_")} == {
        f"past_{kind}.{layer}" for kind in ("conv", "ssm") for layer in range(3)
    }
