"""`verify`: what it runs, what it reports, whose graphs it takes, and what a bundle says when its certificate is
old."""

import json
import runpy
import shutil
import sys
import warnings
from pathlib import Path

import onnx
import pytest
from safetensors.torch import load_file, save_file

from edgeformer.errors import BundleError, ParityError
from edgeformer.export import export_model, verify
from edgeformer.manifest.manifest import FILE_NAME, Manifest
from edgeformer.manifest.parts import sha256
from edgeformer.runtime import load
from edgeformer.runtime.steps.runner import StepRunner


def test_full_verification_runs_every_feeding_and_language(tiny_llama_bundle):
    report = verify(tiny_llama_bundle, "tiny-llama")
    assert report.passed, report.describe()
    names = {check.name.split(":")[0] for check in report.checks}
    assert names == {
        "decode", "prefill", "last logits alone against all", "steps", "steps against prefill", "chunks",
        "chunks against prefill",
        "batch of 1", "batch of 3", "batch of 3 against solo", "batch of 8", "batch of 8 against solo",
        "repeat", "rollback", "unused cache", "far",
    }  # fmt: skip
    assert report.greedy.steps == 256
    assert report.curves[-1].first_position == 1024 - 16
    assert report.rounding is None
    assert report.hashes == Manifest.read(tiny_llama_bundle).graph_hashes()


def test_half_precision_rounding_is_told_from_errors(llama_folder, tmp_path):
    path = export_model(llama_folder, tmp_path / "bundle", precision="fp16").path
    report = verify(path, llama_folder)
    assert report.passed, report.describe()
    assert report.rounding is not None
    # Weights rounded to 11 bits: a loss far above the arithmetic's own errors in float32, and small.
    assert 1e-9 < report.rounding.mean_kl < 1e-4
    assert report.rounding.top1_agreement > 0.9


def test_a_graph_of_another_model_is_red_everywhere(llama_bundle, make_llama):
    report = verify(llama_bundle, make_llama(seed=9), mode="quick")
    assert {"prefill", "decode", "steps", "chunks", "batch of 3"} <= {
        check.name.split(":")[0] for check in report.failures()
    }
    assert report.greedy.divergence is not None
    assert not report.greedy.excused


@pytest.fixture(scope="module")
def somebody_elses(make_llama, tmp_path_factory):
    """The same model through the builder of onnxruntime-genai; it asks for a tokenizer."""
    folder, output = make_llama(vocab_size=2048), tmp_path_factory.mktemp("genai")
    preset = Path(sys.modules["edgeformer"].__file__).parent / "presets" / "tiny-llama"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(preset / name, folder / name)
    line = ["builder", "-i", str(folder), "-o", str(output), "-p", "fp32", "-e", "cpu"]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sys, "argv", [*line, "-c", str(tmp_path_factory.mktemp("cache"))])
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    return folder, output


def test_a_graph_that_genai_built_is_verified_against_its_model(somebody_elses):
    folder, output = somebody_elses
    report = verify(output, folder, mode="quick")
    assert report.passed, report.describe()
    assert verify(output / "model.onnx", folder, mode="quick").passed


def test_a_graph_that_genai_built_wrongly_is_found(somebody_elses, tmp_path):
    folder, output = somebody_elses
    copy = Path(shutil.copytree(output, tmp_path / "copy"))
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    attention = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    next(attribute for attribute in attention.attribute if attribute.name == "rotary_interleaved").i = 1
    (copy / "model.onnx").write_bytes(model.SerializeToString())
    assert not verify(copy, folder, mode="quick").passed


def test_somebody_elses_graph_needs_its_model(somebody_elses):
    with pytest.raises(BundleError, match="is no bundle of edgeformer. To verify what somebody else exported, name"):
        verify(somebody_elses[1])


def test_a_graph_with_other_tensors_is_refused(somebody_elses, make_llama):
    deeper = make_llama(vocab_size=2048, num_hidden_layers=4)
    with pytest.raises(BundleError, match=r"of a 4-layer decoder: it lacks past_key_values\.3\.key"):
        verify(somebody_elses[1], deeper)
    wider = make_llama(vocab_size=2048, head_dim=32, num_key_value_heads=4)
    with pytest.raises(
        BundleError,
        match=r"has past_key_values\.0\.key of tensor\(float\) .*; the model keeps \(4, 1, 32\) a token there",
    ):
        verify(somebody_elses[1], wider)


def test_a_folder_without_a_graph_says_where_it_looked(tmp_path, llama_folder):
    with pytest.raises(BundleError, match=r"has no ONNX graph; looked for onnx/model\.onnx, model\.onnx"):
        verify(tmp_path, llama_folder)


def test_a_bundle_holds_its_certificate(llama_bundle):
    manifest = Manifest.read(llama_bundle)
    report = json.loads((llama_bundle / "parity" / "report.json").read_text())
    assert report["passed"] is True
    assert report["hashes"] == manifest.parity["hashes"] == manifest.graph_hashes()
    assert manifest.parity["report"] == sha256(llama_bundle / "parity" / "report.json")
    assert "greedy" in (llama_bundle / "README.md").read_text()
    assert manifest.certifies(llama_bundle)


def test_load_is_silent_while_the_certificate_holds(llama_bundle):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(llama_bundle)


def test_load_warns_of_a_graph_not_in_the_certificate(llama_bundle, tmp_path):
    copy = Path(shutil.copytree(llama_bundle, tmp_path / "copy"))
    graph = copy / "onnx" / "model.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content.replace(b"edgeformer", b"edgef0rmer", 1))  # the producer's name: same size, same maths
    with pytest.warns(UserWarning, match="is not the one that its parity certificate is about.*edgeformer verify"):
        load(copy)
    # With its hash brought up to date it is still another graph than the certificate's.
    manifest = json.loads((copy / FILE_NAME).read_text())
    manifest["files"]["onnx/model.onnx"]["sha256"] = sha256(graph)
    (copy / FILE_NAME).write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match="is not the one that its parity certificate is about"):
        load(copy)


def test_logits_of_another_token_than_the_last_are_found(tiny_llama_bundle, monkeypatch):
    """The check of prompts, which ask for the logits of their last token alone."""
    prefill = StepRunner.prefill

    def of_the_token_before(self, row, tokens, *, chunk=None):
        return prefill(self, row, tokens[: max(1, len(tokens) - 1)], chunk=chunk)

    monkeypatch.setattr(StepRunner, "prefill", of_the_token_before)
    report = verify(tiny_llama_bundle, mode="quick")
    failed = {check.name.split(":")[0] for check in report.checks if not check.passed}
    assert "last logits alone against all" in failed


def test_float16_overflow_is_the_reason_given(make_model, tmp_path):
    """A row of Gemma's embedding is multiplied by √hidden_size, and becomes infinite."""
    sizes = {"vocab_size": 67, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 16}
    folder = make_model("gemma", **sizes, num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=64)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][:, 3] = 8750.0
    save_file(tensors, path)
    with pytest.raises(ParityError, match=r"larger than float16 can hold, which is 65,504(?s:.*)--precision bf16 or f"):
        export_model(folder, tmp_path / "bundle", precision="fp16")
    assert not (tmp_path / "bundle").exists()
