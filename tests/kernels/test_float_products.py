"""Products with weights of floats: the functions of graphs, their bodies, and their kernels."""

import shutil
from collections import Counter

import numpy as np
import onnx
import pytest

from edgeformer.export import export_model
from edgeformer.runtime import load

TOKENS = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59]
"""More than a tile of vectors has rows, so that a unit of matrix tiles multiplies them where there is one."""
LIMIT = 1e-5
"""The allowed fraction of the largest logit: float32 sums in another order err by less."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return export_model("tiny-llama", tmp_path_factory.mktemp("b") / "bf16", precision="bf16", verify=None).path


def graph_of(bundle):
    return onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False)


def distance(logits, others):
    return float(np.abs(logits - others).max() / np.abs(others).max())


def forward(bundle, **options):
    return load(bundle, "cpu", **options).forward(TOKENS)


def test_every_product_is_a_call_that_reads_bfloat16(bundle):
    graph = graph_of(bundle).graph
    types = {each.name: each.data_type for each in graph.initializer}
    calls = [node for node in graph.node if node.op_type.startswith("Bf16")]
    assert {node.op_type for node in calls} == {"Bf16MatMul", "Bf16MatMulSwiGLU", "Bf16TransposedMatMul"}
    assert all(types[name] == onnx.TensorProto.BFLOAT16 for node in calls for name in node.input[1:])
    assert not [node for node in graph.node if node.op_type in ("MatMul", "FusedMatMul")]


def test_their_attention_must_not_round(bundle):
    """Graphs whose products round activations let it, and say nothing."""
    attention = [node for node in graph_of(bundle).graph.node if node.op_type == "CachedAttention"]
    said = [{each.name: each.i for each in node.attribute}.get("keeps_float32") for node in attention]
    assert said == [1] * len(attention) and said


def test_float32_bundles_call_the_same_functions_by_other_names(bundle, tiny_llama_bundle):
    halves, floats = (
        [node.op_type for node in graph_of(each).graph.node if node.domain == "edgeformer"]
        for each in (bundle, tiny_llama_bundle)
    )
    assert floats == [name.removeprefix("Bf16") for name in halves] and "MatMulSwiGLU" in floats


def test_float16_bundles_call_none(tmp_path):
    bundle = export_model("tiny-llama", tmp_path / "fp16", precision="fp16", verify=None).path
    assert not graph_of(bundle).functions


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kernels_compute_what_bodies_do(bundle, tiny_llama_bundle, installed, library, precision):
    path, name = (tiny_llama_bundle, "MatMul") if precision == "fp32" else (bundle, "Bf16MatMul")
    without = forward(path, kernels=False)
    installed(library)
    ours = load(path, "cpu")
    assert ours.kernels.kernels[name] == 18 and not ours.kernels.bodies
    assert 0 < distance(ours.forward(TOKENS), without) < LIMIT


@pytest.mark.parametrize("number", ["one", "the last"])
def test_a_weight_that_is_off_is_seen(bundle, installed, library, tmp_path, number):
    """The control: one weight of a feed-forward, 1.5 (0x3FC0) instead of what it was."""
    spoiled = shutil.copytree(bundle, tmp_path / "spoiled")
    model = graph_of(spoiled)
    weight = next(each for each in model.graph.initializer if each.name == "blocks.5.feed_forward.down.weight")
    place = {each.key: each.value for each in weight.external_data}
    size = int(np.prod(weight.dims))
    file = spoiled / "onnx" / place["location"]
    numbers = np.memmap(file, np.uint16, "r+", int(place.get("offset", 0)), (size,))
    numbers[0 if number == "one" else -1] = 0x3FC0
    numbers.flush()
    without = forward(bundle, kernels=False)
    installed(library)
    assert distance(forward(spoiled), without) > 10 * LIMIT


def test_models_with_biases_call_them_too(make_model, tmp_path):
    """Ops that are still canonical when the rule runs, such as GPT-2's positions, once kept all calls out."""
    config = {"vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": 130}
    folder = make_model("gpt2", 3, **config)
    graph = graph_of(export_model(folder, tmp_path / "bf16", precision="bf16", verify=None).path).graph
    counts = Counter(node.op_type for node in graph.node)
    assert (counts["Bf16MatMul"], counts["Bf16TransposedMatMul"], counts["CachedAttention"]) == (8, 1, 2)
