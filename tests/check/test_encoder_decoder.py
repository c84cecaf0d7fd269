"""`check` of the encoder and decoder graphs, and of the merged decoder for other clients."""

import json
import subprocess

import pytest
from run_clients import require
from verification.client_programs.client import EXAMPLES
from verification.client_programs.programs import NodeClient, with_modules

from edgeformer.check import check
from edgeformer.export import export_model
from edgeformer.runtime import load

SOURCE = [5, 16, 27, 8, 1]
T5 = {"vocab_size": 131, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
NODE, BROWSER = "transformers.js-node", "transformers.js-browser"
MERGED = "decoder_model_merged.onnx"


@pytest.fixture(scope="module")
def bundle(make_model, tmp_path_factory):
    checkpoint = make_model("t5", 3, auto="AutoModelForSeq2SeqLM", **T5, decoder_start_token_id=0)
    return export_model(checkpoint, tmp_path_factory.mktemp("pair") / "t5", verify=None).path


def failing(report):
    return {name for name in report.clients if report.verdict(name) == "does not load"}


def said(report, client):
    return " ".join(map(str, report.clients[client]))


def test_graphs_that_share_their_weights(bundle):
    report = check(bundle)
    assert report.keeps_contract, report.contract
    assert report.kind == "encoder-decoder"
    assert failing(report) == {"onnxruntime-genai", BROWSER}
    assert "it runs decoders only" in said(report, "onnxruntime-genai")
    assert "graphs cannot share one" in said(report, BROWSER)


def test_transformers_js_runs_it(bundle, places):
    require(NodeClient(), places)
    expected = load(bundle).generate(SOURCE, max_new_tokens=6).token_ids
    with with_modules(EXAMPLES / "node", places) as place:
        line = ["node", "translate.mjs", bundle, " ".join(map(str, SOURCE)), "--ids", "--new-tokens", "6"]
        done = subprocess.run(line, cwd=place, capture_output=True, text=True, check=True)
    assert [int(word) for word in done.stdout.split()] == expected


def test_a_pair_without_the_third(bundle, spoil):
    report = check(spoil(bundle, lambda edit: (edit.folder / "onnx" / MERGED).unlink()))
    assert failing(report) == {"edgeformer", "onnxruntime-genai", NODE, BROWSER, "optimum"}
    assert f"It looks for onnx/{MERGED}, which is not there" in said(report, NODE)
    assert f"There is no {MERGED}." in said(report, "optimum")


def test_a_third_that_lacks_something(bundle, spoil):
    name = "present.0.encoder.key"
    report = check(spoil(bundle, lambda edit: edit.rename(name, "gone", f"onnx/{MERGED}")))
    for client in (NODE, BROWSER, "optimum"):
        assert f"onnx/{MERGED} does not return {name}." in said(report, client)


def test_a_decoder_that_lacks_something(bundle, spoil):
    name = "past_key_values.0.encoder.value"
    report = check(spoil(bundle, lambda edit: edit.rename(name, "gone", "onnx/decoder_model.onnx")))
    assert failing(report) >= {"onnxruntime", "onnxruntime-cpp"}
    assert not failing(report) & {NODE, "optimum"}
    assert f"onnx/decoder_model.onnx has no input {name}." in said(report, "onnxruntime")


def test_a_type_that_transformers_js_does_not_know(bundle, spoil):
    report = check(spoil(bundle, lambda edit: edit.json("config.json", "model_type", "pegasus")))
    assert "no model_type 'pegasus' among its encoder-decoders" in said(report, NODE)
    assert json.loads((bundle / "config.json").read_text())["model_type"] == "t5"
