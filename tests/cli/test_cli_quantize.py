"""Quantized exports from the command line: options, printed text, `info`, and the model card."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

from edgeformer.checkpoints.found_model import find_model
from edgeformer.cli.main import cli
from edgeformer.export import verify
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import sha256
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization


def run(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


OPTIONS = ["--precision", "int4", "--block", 64, "--asymmetric", "--rounding", "nearest", "--head-precision", "int8"]


@pytest.fixture(scope="module")
def exported(make_llama, tmp_path_factory):
    """A verified int4 bundle with other options than the default ones, its checkpoint, and what the command printed."""
    checkpoint = make_llama(num_hidden_layers=2, max_position_embeddings=64)
    place = tmp_path_factory.mktemp("bundles") / "int4"
    result = run("export", "--model", checkpoint, "-o", place, *OPTIONS, "--keep", "blocks.0.feed_forward.*")
    assert result.exit_code == 0, result.output
    return place, checkpoint, result


def test_export_says_how_it_stored_the_weights_and_verifies_them(exported):
    place, checkpoint, result = exported
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"exported folder {checkpoint.name} to {place}: ")
    assert lines[1].startswith("graph: op set ort for CPU, int4; ") and lines[1].endswith("quantize_weights 9")
    assert lines[2].startswith("weights: blocks.0.feed_forward.* not quantized; ")
    assert "*head.weight, *embedding.weight int8 in blocks of 64, asymmetric; " in lines[2]
    assert lines[2].endswith("; int4 in blocks of 64, asymmetric")
    assert "checks passed; closest to its limit: " in result.stdout


def test_options_make_the_quantization(exported):
    manifest = Manifest.read(exported[0])
    assert manifest.plan.quantization == make_quantization(
        "int4",
        QuantizationOverrides(
            block=64, symmetric=False, rounding="nearest", head="int8", keep=("blocks.0.feed_forward.*",)
        ),
    )
    formats = {name: stored.quantized for stored in manifest.weights.values() for name in stored.parameters}
    assert formats["blocks.0.feed_forward.up.weight"] is None
    assert (formats["blocks.1.feed_forward.up.weight"].bits, formats["head.weight"].bits) == (4, 8)
    assert formats["blocks.1.feed_forward.down.weight"].block == 32, "64 does not divide its 96 inputs"


def test_the_model_card_says_what_quantization_costs(exported):
    card = (exported[0] / "README.md").read_text()
    assert "op set ort for CPU,\nint4." in card
    assert "Quantization causes a mean KL divergence of 0.0" in card
    assert " % of positions (on random tokens)." in card
    page = (exported[0] / "parity" / "report.html").read_text()
    assert "Storing the weights in int4 changes the model itself, whatever runs it: KL divergence" in page
    assert "With everything that the graph rounds to 8 bits in use: KL divergence" in page


def test_info_counts_the_bytes_that_there_are(exported):
    place, checkpoint, _ = exported
    data = json.loads(run("info", place, "--json").stdout)
    size = (place / "onnx" / "model.onnx_data").stat().st_size
    assert (data["precision"], data["total_bytes"], data["bytes"]) == ("int4", size, {})
    plain = json.loads(run("info", checkpoint, "--json").stdout)
    assert plain["parameters"] == data["parameters"]
    assert plain["cache_bytes_per_token"] == data["cache_bytes_per_token"], "caches are float32"
    assert re.search(rf"^bytes in int4 +{size:,}$", run("info", place).stdout, re.MULTILINE)


def test_the_report_separates_graph_error_from_loss(exported):
    place, checkpoint, _ = exported
    report = json.loads(run("verify", place, "--against", checkpoint, "--quick", "--json").stdout)
    assert report["passed"]
    names = {check["name"] for check in report["checks"]}
    assert {"prefill: mean KL", "int8 activations, prefill: mean KL", "weights: block error"} <= names
    worst = max(check["value"] for check in report["checks"] if check["name"].endswith("mean KL"))
    assert worst < 0.1 * report["rounding"]["mean_kl"] and report["quantization"]["mean_kl"] > 0
    assert not {"rounding", "quantization"} & json.loads(run("verify", place, "--quick", "--json").stdout).keys()


def test_verify_against_other_weights_fails(exported, make_llama):
    other = make_llama(seed=5, num_hidden_layers=2, max_position_embeddings=64)
    result = run("verify", exported[0], "--against", other, "--quick")
    assert result.exit_code == 1
    assert "NOT verified: 2 of " in result.stdout


def test_nodes_of_quantized_graphs_are_not_located_yet(exported):
    result = run("verify", exported[0], "--quick", "--locate")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: wrong nodes can be located in graphs of fp32 and fp16, and this one is int4. Export"
    )


def test_a_matrix_that_stays_as_it_is_is_explained(make_llama, tmp_path):
    checkpoint = make_llama(num_hidden_layers=1, intermediate_size=40)
    result = run(
        "export",
        "--model",
        checkpoint,
        "-o",
        tmp_path / "b",
        "--precision",
        "int8",
        "--no-verify",
        "--explain",
        "--json",
    )
    reason = "blocks.0.feed_forward.down.weight has 40 inputs, which no block of 16 or more fits"
    data = json.loads(result.stdout)
    assert data["passes"]["quantize_weights"] == {
        "changed": 6, "missed": [f"blocks.0.feed_forward.down/MatMul: {reason}"],
    }  # fmt: skip
    (rules,) = (graph["rules"] for graph in data["graphs"].values())
    assert {rule["name"]: rule["changed"] for rule in rules}["quantized"] == 5, "gate and up are one"
    assert verify(tmp_path / "b", checkpoint, mode="quick").passed


def test_a_text_calibrates(make_llama, tmp_path):
    preset = find_model("tiny-llama")
    sizes = {"vocab_size": preset.hf_config["vocab_size"], "num_hidden_layers": 1, "tie_word_embeddings": True}
    checkpoint = make_llama(**sizes)
    shutil.copyfile(preset.folder / "tokenizer.json", checkpoint / "tokenizer.json")
    text = tmp_path / "story.txt"
    text.write_text("Once upon a time there was a ferry, and a goat that had never paid for it. " * 20)
    options = ["--model", checkpoint, "--precision", "int4", "--no-verify", "--calibrate", text]
    result = run("export", *options, "-o", tmp_path / "b")
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(tmp_path / "b")
    source = manifest.plan.quantization.calibration
    assert manifest.plan.quantization == replace(
        make_quantization("int4", QuantizationOverrides(rounding="gptq")), calibration=source
    )
    assert (source.name, source.sha256) == ("story.txt", sha256(text))
    line = f"weights: int4 in blocks of 128, gptq; calibrated with {source.tokens:,} tokens of story.txt"
    assert line in result.stdout.splitlines()
    (checkpoint / "tokenizer.json").unlink()
    result = run("export", *options, "-o", tmp_path / "c")
    assert result.exit_code == 1
    assert f"{text} cannot be read to calibrate with: the model has no tokenizer.json. Put the one" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--block", "32"],
        ["--asymmetric"],
        ["--rounding", "mse"],
        ["--activations", "per-token"],
        ["--head-precision", "fp32"],
        ["--tower-precision", "int8"],
        ["--keep", "*"],
    ],
)
def test_options_of_quantization_without_it_are_said(tmp_path, options):
    for precision in ("fp32", "fp16"):
        result = run("export", "--model", "tiny-llama", "-o", tmp_path / "b", "--precision", precision, *options)
        assert result.exit_code == 1
        options_of_quantization = (
            "(--block, --asymmetric, --rounding, --scales, --activations, --head-precision, --tower-precision, --keep)"
        )
        expected = f"{options_of_quantization} are for int4 and int8, and the precision is {precision}."
        assert expected in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--block", "48"], "error: block is 48; it must be one of 16, 32, 64, 128, 256, or None."),
        (["--ops", "standard"], "error: quantized products are ops of onnxruntime's own. Leave ops standard out, or"),
        (["--ops", "portable"], "error: quantized products are ops of onnxruntime's own. Leave ops portable out, or"),
        (
            ["--rounding", "gptq"],
            "error: the rounding gptq needs a text of what the model is for. Give one (--calibra",
        ),
        (["--calibrate", "lost.txt"], "error: there is no file lost.txt to calibrate with. Give a file of text."),
        (
            ["--rounding", "mse", "--calibrate", "a.txt"],
            "error: a text to calibrate with is for int4 and int8 with the",
        ),
        (
            ["--activations", "per-token"],
            "error: dynamic per-token activation quantization needs symmetric int8 weights",
        ),
        (
            ["--keep", "*.query.weight"],
            "error: the quantization config has different formats for blocks.0.attention.query.weight, ",
        ),
    ],
)
def test_what_cannot_be_done_is_one_message(tmp_path, options, message):
    result = run("export", "--model", "tiny-llama", "-o", tmp_path / "b", "--precision", "int4", *options)
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert not list(tmp_path.iterdir())
