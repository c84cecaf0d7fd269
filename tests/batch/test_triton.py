"""examples/triton: repositories that Triton's own schema accepts, and the model of its backend `python`.

The server is no Python package, so it does not run here. Its client has the schema, but wants an older ml_dtypes than
onnx's newest; EDGEFORMER_TRITONCLIENT names a folder of its own for it.
"""

import importlib.util
import os
import sys
import threading
import types
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format

from edgeformer.runtime import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "triton"


def module(path):
    spec = importlib.util.spec_from_file_location(f"of_triton_{path.stem}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def schema():
    """The protocol buffers of Triton's client, without the gRPC that its package wants."""
    folder = os.environ.get("EDGEFORMER_TRITONCLIENT")
    if folder is None:
        pytest.skip(
            "2026-11-24: needs Triton's client; pip install --no-deps --target FOLDER tritonclient, and name FOLDER "
            "in EDGEFORMER_TRITONCLIENT"
        )
    return module(Path(folder) / "tritonclient" / "grpc" / "model_config_pb2.py")


@pytest.fixture(scope="module")
def encoder(embed, tmp_path_factory):
    return module(EXAMPLE / "make_repository.py").make_repository(embed, tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def decoder(llama, tmp_path_factory):
    return module(EXAMPLE / "make_repository.py").make_repository(llama, tmp_path_factory.mktemp("decoder"))


def parsed(folder, schema):
    return text_format.Parse((folder / "config.pbtxt").read_text(), schema.ModelConfig())


def test_the_configs_are_those_of_triton_s_schema(encoder, decoder, embed, schema):
    config = parsed(encoder, schema)
    assert (config.name, config.backend, config.max_batch_size) == (embed.name, "onnxruntime", 32)
    session = onnxruntime.InferenceSession(encoder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    assert {value.name: list(value.dims) for value in config.input} == {"input_ids": [-1], "attention_mask": [-1]}
    outputs = {value.name: (value.data_type, list(value.dims)) for value in config.output}
    assert outputs["sentence_embedding"] == (schema.TYPE_FP32, [128])
    assert set(outputs) == {value.name for value in session.get_outputs()}
    config = parsed(decoder, schema)
    assert config.backend == "python" and config.model_transaction_policy.decoupled
    assert [(value.name, value.optional) for value in config.input] == [("prompt", False), ("max_tokens", True)]
    with pytest.raises(text_format.ParseError):
        text_format.Parse("max_batch: 32", schema.ModelConfig())


def test_the_graph_of_an_encoder_runs_from_the_repository(encoder, embed):
    session = onnxruntime.InferenceSession(encoder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    model = load(embed, "cpu", 1)
    ids = np.array([model.encode_text("A dog barks.")[0]])
    [vector] = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    np.testing.assert_allclose(vector, model.embed("A dog barks."), atol=1e-6)


class Sender:
    def __init__(self):
        self.sent, self.final = [], threading.Event()

    def send(self, response=None, flags=0):
        self.sent.append(response)
        if flags:
            self.final.set()


def test_a_decoder_streams_through_the_python_backend(llama, decoder, monkeypatch):
    stand_in = types.ModuleType("triton_python_backend_utils")
    stand_in.Tensor = lambda name, array: (name, array)
    stand_in.InferenceResponse = lambda tensors, error=None: (tensors, error)
    stand_in.TritonError = str
    stand_in.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    stand_in.get_input_tensor_by_name = lambda request, name: request.inputs.get(name)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in)
    model = module(decoder / "1" / "model.py").TritonPythonModel()
    model.initialize({})
    senders = {limit: Sender() for limit in (12, 100_000)}
    for limit, sender in senders.items():
        inputs = {"prompt": np.array([b"Once upon a time"], dtype=object), "max_tokens": np.array([limit])}
        tensors = {name: types.SimpleNamespace(as_numpy=lambda array=array: array) for name, array in inputs.items()}
        model.execute([types.SimpleNamespace(inputs=tensors, get_response_sender=lambda sender=sender: sender)])
        assert sender.final.wait(60)
    model.finalize()
    pieces = [tensors[0][1].item().decode() for tensors, _ in (each for each in senders[12].sent if each)]
    assert len(pieces) > 3
    assert "".join(pieces) == load(llama, "cpu", 1).generate("Once upon a time", max_new_tokens=12).text
    [(_, error)] = senders[100_000].sent
    assert "context" in error
