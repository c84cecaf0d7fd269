"""The command `edgeformer check`: its table, its JSON, its exit codes."""

import json
import re
import shutil
import sys

import pytest
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.export import export_model


def run(*arguments):
    return CliRunner().invoke(cli, ["check", *map(str, arguments)], env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Return a bundle that a browser does not load."""
    return export_model("tiny-llama", tmp_path_factory.mktemp("b") / "tiny", precision="bf16", verify=None).path


def test_a_sound_bundle_that_one_client_does_not_load(bundle):
    result = run(bundle)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["client"]
    assert [line.split()[:2] for line in lines[1:7]] == [
        ["edgeformer", "loads"], ["onnxruntime", "loads"], ["onnxruntime-cpp", "loads"],
        ["onnxruntime-genai", "loads"], ["transformers.js-node", "loads"], ["transformers.js-browser", "does"],
    ]  # fmt: skip
    assert f"contract of {bundle}: kept" in lines
    assert "  error: model.onnx has bfloat16 weights, for which its WebAssembly has no" in lines


def test_a_client_that_is_asked_for_must_load_it(bundle):
    assert run(bundle, "--client", "onnxruntime-genai", "--client", "optimum").exit_code == 0
    result = run(bundle, "--client", "onnxruntime-genai", "--client", "transformers.js-browser")
    assert result.exit_code == 1
    assert "transformers.js-browser  does not load" in result.stdout
    assert "optimum" not in result.stdout
    assert run(bundle, "--client", "a toaster").exit_code == 2


def test_a_broken_contract(bundle, tmp_path):
    broken = shutil.copytree(bundle, tmp_path / "broken")
    (broken / "onnx" / "model.onnx_data").unlink()
    result = run(broken)
    assert result.exit_code == 1
    assert f"contract of {broken}: broken" in result.stdout
    assert "  error: onnx/model.onnx_data is missing: the weights of onnx/model.onnx. Copy" in result.stdout
    assert not re.search(r"^\S+ +loads ", result.stdout, re.MULTILINE)


def test_as_json(bundle):
    result = run(bundle, "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert (data["kind"], data["contract"]) == ("decoder", {"kept": True, "findings": []})
    (finding,) = data["clients"]["transformers.js-browser"]["findings"]
    assert finding["severity"] == "error"
    assert finding["remedy"] == "Export with another --precision."
    verdicts = {name: client["verdict"] for name, client in data["clients"].items()}
    assert verdicts.pop("transformers.js-browser") == "does not load"
    assert set(verdicts.values()) == {"loads"}


def test_what_is_no_bundle(tmp_path):
    result = run(tmp_path / "none")
    assert result.exit_code == 1
    assert "there is no folder" in result.stderr
    assert "Make a bundle with: edgeformer export --model MODEL --output" in result.stderr
    assert "has no ONNX graph (*.onnx) in it" in run(tmp_path).stderr


def test_without_onnx_it_says_what_to_install(bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = run(bundle)
    assert result.exit_code == 1
    assert "onnx is not installed, and this needs it. Install it with: pip install 'edgeformer[check]'" in result.stderr


def test_help_fits_80_columns():
    result = CliRunner().invoke(cli, ["check", "--help"], terminal_width=80)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_what_runs_functions_is_said_for_each_client(tmp_path):
    bundle = export_model("tiny-llama", tmp_path / "int4", precision="int4", verify=None).path
    shown = " ".join(run(bundle).stdout.split())
    assert "kernels or bodies of the graph's functions: " in shown
    assert "onnxruntime-genai: Bodies run. For kernels, set model.decoder.session_options.custom_ops_library" in shown
    assert "transformers.js-browser: Bodies run: a browser loads no libraries." in shown
    assert "optimum: " not in " ".join(run(bundle, "--client", "edgeformer").stdout.split())
    data = json.loads(run(bundle, "--json").stdout)
    assert "MatMulNBits" in data["functions"]
    assert data["clients"].keys() == {name for name, client in data["clients"].items() if client["kernels"]}


def test_a_graph_without_functions_says_nothing_of_kernels(tmp_path):
    bundle = export_model("tiny-llama", tmp_path / "fp16", precision="fp16", verify=None).path
    assert "kernels or bodies" not in run(bundle).stdout
    data = json.loads(run(bundle, "--json").stdout)
    assert data["functions"] == []
    assert data["clients"]["onnxruntime"]["kernels"] is None
