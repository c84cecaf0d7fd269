"""Launches of kernels in a decode step on WebGPU: no more in a layer than in onnxruntime-genai's own model.

Its builder writes a model of the same geometry, that of SmolLM2 135M with a small vocabulary. Two depths of either tell
what a layer takes.
"""

import os
import shutil
import subprocess
import sys

import pytest
from webgpu_adapter import adapter_or_skip
from webgpu_launches import launches_of

from edgeformer.export import export_model

GEOMETRY = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "vocab_size": 512, "tie_word_embeddings": True,
}  # fmt: skip

DEPTHS = (2, 4)

pytestmark = pytest.mark.slow
adapter = pytest.fixture(scope="module", autouse=True)(adapter_or_skip)


def built_by_genai(model, folder, tokenizer):
    """Return the graph that onnxruntime-genai's builder writes for a checkpoint, in int4 and float32 for WebGPU."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, model)
    options = ["-p", "int4", "-e", "webgpu", "--extra_options", "use_webgpu_fp32=true"]
    folders = ["-i", str(model), "-o", str(folder), "-c", str(folder / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", "llama", *folders, *options],
        env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "model.onnx"


@pytest.fixture(scope="module")
def steps(make_model, tiny_llama_bundle, tmp_path_factory):
    """The steps of both builders at both depths, ours first."""
    found = {}
    for depth in DEPTHS:
        model = make_model("llama", num_hidden_layers=depth, **GEOMETRY)
        folder = tmp_path_factory.mktemp("launches")
        bundle = export_model(model, folder / "ours", precision="int4", provider="webgpu", verify=None).path
        graphs = bundle / "onnx" / "model.onnx", built_by_genai(model, folder / "genai", tiny_llama_bundle)
        found[depth] = tuple(map(launches_of, graphs))
    return found


def test_a_layer_launches_no_more_than_genais(steps):
    """A step launches two more: slices that leave a prompt's last token alone for the head."""
    (shallow, deep), layers = (steps[depth] for depth in DEPTHS), DEPTHS[1] - DEPTHS[0]
    ours, theirs = (len(after.launches) - len(before.launches) for before, after in zip(shallow, deep, strict=True))
    assert layers <= ours <= theirs  # 9 a layer of either in SwiftShader; adapters choose kernels
    nodes, their_nodes = (after.nodes - before.nodes for before, after in zip(shallow, deep, strict=True))
    assert 0 < nodes <= their_nodes == 6 * layers
    for own, genai in steps.values():
        assert len(own.launches) <= len(genai.launches) + own.launches.count("Slice") == len(genai.launches) + 2


def test_the_host_works_out_lengths_alone(steps):
    for own, _ in steps.values():
        assert own.on_host and all(name.startswith("lengths/") for name in own.on_host)
        assert own.bytes_to_device == 12, "a token id and a length; 64 and 16 for each row are allowed"


def test_a_node_of_a_layer_on_the_host_is_counted(make_model, tmp_path):
    """A graph for WebAssembly has such nodes, and copies around them."""
    model = make_model("llama", num_hidden_layers=2, **GEOMETRY)
    bundle = export_model(model, tmp_path / "cpu", deployment="web", verify=None).path
    step = launches_of(bundle / "onnx" / "model.onnx")
    assert any("MatMulIntegerToFloat" in name for name in step.on_host)
    assert step.bytes_to_device > 64 + 16
