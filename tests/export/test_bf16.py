"""bf16 stores weights in half the bytes and computes with them in float32."""

import numpy as np
import onnx
import pytest
import torch
import transformers

from edgeformer.check import check
from edgeformer.errors import BundleError, ExportError, ParityError, RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.lower import job
from edgeformer.export.parity.locate import locator as locate
from edgeformer.export.parity.verify import open_subject
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load

TEXT = [1, 17, 40, 99, 5, 64]
T5 = {
    "vocab_size": 97,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 1,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


def data_bytes(result):
    return (result.path / "onnx" / "model.onnx_data").stat().st_size


@pytest.mark.parametrize("ops", ["ort", "standard", "portable"])
def test_a_bf16_checkpoint_loses_nothing_in_half_the_bytes(make_llama, tmp_path, ops):
    folder = make_llama(seed=3, dtype=torch.bfloat16)
    half = export_model(folder, tmp_path / "half", precision="bf16", ops=ops, verify="full")
    whole = export_model(folder, tmp_path / "whole", ops=ops, verify=None)

    assert half.report.rounding is None  # nothing was rounded
    assert data_bytes(half) < 0.6 * data_bytes(whole)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits[0].numpy()
    np.testing.assert_allclose(load(half.path).forward(TEXT), expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(load(half.path).forward(TEXT), load(whole.path).forward(TEXT))


def test_what_rounding_a_float32_checkpoint_costs_is_reported(llama_folder, tmp_path):
    result = export_model(llama_folder, tmp_path / "b", precision="bf16", verify="full")

    assert 1e-9 < result.report.rounding.nmse < 1e-3
    again = verify(result.path)
    assert again.passed and again.rounding is None  # against the weights that it has
    assert verify(result.path, llama_folder, mode="quick").passed


def test_tables_that_the_module_computes_keep_their_digits(llama_folder, tmp_path, monkeypatch):
    result = export_model(llama_folder, tmp_path / "b", precision="bf16")
    graph = onnx.load(result.path / "onnx" / "model.onnx", load_external_data=False).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer if "." in tensor.name}

    wide = {name for name, kind in types.items() if kind == onnx.TensorProto.FLOAT}
    assert wide == {"rotary.0.cos", "rotary.0.sin"}
    assert set(types.values()) == {onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16}

    right = job.bf16_weights

    def with_tables(model, parameters):
        return right(model, {*parameters, *wide})

    monkeypatch.setattr(job, "bf16_weights", with_tables)
    with pytest.raises(ParityError):
        export_model(llama_folder, tmp_path / "rounded", precision="bf16")


def test_encoder_decoders_and_windows_are_stored_so_too(make_model, tmp_path):
    seq2seq = make_model("t5", auto="AutoModelForSeq2SeqLM", **T5)
    assert export_model(seq2seq, tmp_path / "t5", precision="bf16").report.passed
    sizes = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    windowed = make_model("mistral", **sizes, num_key_value_heads=2, sliding_window=8, max_position_embeddings=64)
    result = export_model(windowed, tmp_path / "mistral", precision="bf16")
    assert result.report.passed and "windowed" in result.manifest.graphs


def test_for_cuda_everything_is_bfloat16_and_the_cpu_is_refused(llama_folder, tmp_path):
    result = export_model(llama_folder, tmp_path / "b", precision="bf16", provider="cuda", verify="quick")

    assert result.report.passed and result.report.precision == "bf16"
    assert check(result.path, "cuda").audit.verdict == "loads"
    graph = onnx.load(result.path / "onnx" / "model.onnx", load_external_data=False).graph
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    weights = {tensor.data_type for tensor in graph.initializer if "." in tensor.name}
    assert weights & floats == {onnx.TensorProto.BFLOAT16}
    kinds = {value.name.split(".")[0]: value.type.tensor_type.elem_type for value in graph.output}
    assert kinds == {"logits": onnx.TensorProto.FLOAT, "present": onnx.TensorProto.BFLOAT16}
    with pytest.raises(RequestError, match="computes in bfloat16, for which onnxruntime .* no kernels"):
        load(result.path, "cpu")


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_integers_for_cuda_may_be_computed_with_in_bfloat16(llama_folder, tmp_path, precision):
    result = export_model(llama_folder, tmp_path / "b", precision=precision, provider="cuda", arithmetic="bf16")

    assert result.report.passed and result.manifest.plan.arithmetic == "bf16"
    assert check(result.path, "cuda").audit.verdict == "loads"
    graph = onnx.load(result.path / "onnx" / "model.onnx", load_external_data=False).graph
    scales = {tensor.data_type for tensor in graph.initializer if tensor.name.endswith(".scales")}
    assert scales == {onnx.TensorProto.BFLOAT16}
    kinds = {value.name.split(".")[0]: value.type.tensor_type.elem_type for value in graph.output}
    assert kinds == {"logits": onnx.TensorProto.FLOAT, "present": onnx.TensorProto.BFLOAT16}
    with pytest.raises(RequestError, match="computes in bfloat16, for which onnxruntime .* no kernels"):
        load(result.path, "cpu")


def test_where_bf16_is_of_no_use_is_said(llama_folder, tmp_path):
    with pytest.raises(ExportError, match="cannot read a dynamic cache of it.*Choose a static cache"):
        export_model(llama_folder, tmp_path / "b", precision="bf16", provider="cuda", ops="standard")
    path = export_model(llama_folder, tmp_path / "b", precision="bf16", verify=None).path
    subject = open_subject(path, llama_folder)
    with pytest.raises(BundleError, match="this one is bf16"):
        locate.Locator(Manifest.read(path), subject.model_spec, subject.weights)
