"""`edgeformer export --deployment`: what it prints, and that options take precedence over the deployment."""

import json

from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization


def run(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_help_says_what_is_chosen():
    said = " ".join(run("export", "--help").stdout.split())
    for words in (
        "server: int8, a cache in fp16;",
        "desktop: int4, a head in int6, a cache in fp16;",
        "web: int8, activations per token;",
        "mobile: int4, a head in int8, .ort files",
    ):
        assert words in said


def test_an_export_names_its_target(llama_folder, tmp_path):
    result = run("export", "--model", llama_folder, "-o", tmp_path / "b", "--deployment", "web")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "deployment: web" in lines
    assert "weights: int8 per channel" in lines
    assert not any("certificate" in line for line in lines), "there is none"
    assert Manifest.read(tmp_path / "b").plan.deployment == "web"
    assert run("verify", tmp_path / "b", "--quick").exit_code == 0


def test_options_go_before_it(llama_folder, tmp_path):
    options = ["--deployment", "desktop", "--precision", "int8", "--head-precision", "fp32"]
    result = run("export", "--model", llama_folder, "-o", tmp_path / "b", *options, "--no-verify", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["deployment"] == "desktop"
    manifest = Manifest.read(tmp_path / "b")
    assert manifest.plan.precision == "int8"
    assert manifest.plan.quantization == make_quantization("int8", QuantizationOverrides(head="fp32"))


def test_options_of_quantization_are_for_what_a_target_quantizes(tmp_path):
    options = ["--model", "tiny-llama", "-o", tmp_path / "b", "--deployment", "web"]
    result = run("export", *options, "--ops", "standard", "--block", "64")
    assert result.exit_code == 1
    assert "are for int4 and int8, and the precision is fp32." in result.stderr
    result = run("export", *options, "--provider", "cuda")
    assert (result.exit_code, result.stderr) == (
        1, "error: the deployment web has no CUDA. Leave provider cuda out, or the deployment.\n",
    )  # fmt: skip
    assert not list(tmp_path.iterdir())
