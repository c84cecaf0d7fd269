"""Experts of transformers through `--backend transformers`: found by running them, read one by one, and proved.

`test_transformers_backend` exports some of these models and compares them with the untouched module.
"""

import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from slow_rows import slow_unless

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from checkpoints.tiny_transformers import CONTEXT, tiny_config

from edgeformer.checkpoints.expert_weights import read_expert
from edgeformer.config import FeedForwardConfig
from edgeformer.errors import ExportError, WeightsError
from edgeformer.export import export_model
from edgeformer.export.importers.from_transformers import plan_patches
from edgeformer.export.importers.transformers_proof import prove
from edgeformer.transformers_backend.hf_module import build
from edgeformer.transformers_backend.patches.experts import StackReader
from edgeformer.transformers_backend.tensors.weights import checkpoint_tensors, patched_tensors

LAYERS = 2
SWIGLU = FeedForwardConfig(intermediate_size=32, activation="silu", bias=False)
CLAMPED = FeedForwardConfig(intermediate_size=96, activation="silu", bias=True, beta=1.702, limit=7.0, up_offset=1.0)

# What the experts of each model must turn out to compute.
NETWORKS = {
    "qwen3_moe": SWIGLU,
    "gpt_oss": CLAMPED,
    "minimax_m3_vl_text": replace(CLAMPED, bias=False),
}


def sizes(model_type):
    fields = tiny_config(model_type, num_hidden_layers=LAYERS)
    kinds = fields.get("layer_types")
    return fields | ({"layer_types": kinds[:LAYERS]} if kinds else {})


@pytest.mark.parametrize("model_type", NETWORKS)
def test_experts_are_known_by_what_they_compute(model_type):
    experts = plan_patches(sizes(model_type), CONTEXT).plan.experts
    assert {form.config for form in experts.values()} == {NETWORKS[model_type]}
    assert len(experts) == LAYERS


def test_experts_that_compute_something_else_are_refused():
    """Those of Inkling 2 multiply in an activation of two inputs."""
    with pytest.raises(ExportError, match=r"experts .Inkling2Experts. computes something else with its"):
        plan_patches(tiny_config("inkling2_text"), CONTEXT)


@pytest.fixture(scope="module", params=["qwen3_moe", "gpt_oss"])
def opened(request, make_model):
    """Return a plan, and the weights by transformers' names: of experts stored one by one, and of stacked ones."""
    folder = make_model(**sizes(request.param))
    patched = plan_patches(sizes(request.param), CONTEXT)
    weights = checkpoint_tensors(folder, build(patched.config, torch.float32, "eager"))
    return patched, weights, folder


def test_the_proof_holds_to_rounding_of_float64(opened):
    patched, weights, folder = opened
    assert prove(patched.config, patched.plan, weights, folder) < 1e-12


FAULTS = {
    "gate and up in the other layout": lambda form: replace(
        form, layout=replace(form.layout, is_concatenated=not form.layout.is_concatenated)
    ),
    "another activation": lambda form: replace(form, config=replace(form.config, activation="gelu", beta=1.0)),
    "weights before the network": lambda form: replace(form, weighted_input=True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses_experts_that_compute_something_else(opened, fault):
    patched, weights, folder = opened
    name = min(patched.plan.experts)
    wrong = replace(patched.plan, experts=patched.plan.experts | {name: FAULTS[fault](patched.plan.experts[name])})
    with pytest.raises(ExportError, match=r"does not compute .* first differ after layer 0 .model.layers.0, "):
        prove(patched.config, wrong, weights, folder)


def test_the_proof_refuses_experts_in_another_order(opened, monkeypatch):
    patched, weights, folder = opened
    monkeypatch.setattr(StackReader, "read_expert", lambda self, expert: self()[expert - 1])
    with pytest.raises(ExportError, match="first differ after layer 0"):
        prove(patched.config, patched.plan, weights, folder)


def test_one_expert_is_read_without_the_others(opened):
    patched, weights, folder = opened
    ours = patched_tensors(weights, patched.plan)
    names = [name for name in ours if ".mlp.experts." in name]
    assert len(names) == LAYERS * (6 if "bias" in " ".join(names) else 3)
    for name in names:
        assert torch.equal(read_expert(ours, name, 3), ours[name][3])
    stored = load_file(folder / "model.safetensors")
    if "model.layers.0.mlp.experts.3.up_proj.weight" in stored:  # Qwen3 stores experts one by one
        up = stored["model.layers.0.mlp.experts.3.up_proj.weight"]
        assert torch.equal(read_expert(ours, "model.layers.0.mlp.experts.up.weight", 3), up)


def test_a_missing_expert_is_reported(make_model, tmp_path):
    folder = make_model(**sizes("qwen3_moe"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.2.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    model = build(plan_patches(sizes("qwen3_moe"), CONTEXT).config, torch.float32, "eager")
    with pytest.raises(WeightsError, match=r"makes model.layers.1.mlp.experts.gate_up_proj of several tensors"):
        checkpoint_tensors(tmp_path, model)


STORED_BUFFERS = {"apertus": "eps", "deepseek_v3": "e_score_correction_bias", "nemotron_h": "e_score_correction_bias"}


@pytest.mark.parametrize("model_type", STORED_BUFFERS)
def test_every_tensor_has_the_value_that_transformers_loads(make_model, model_type):
    """Buffers that checkpoints store are tensors like others: routers choose experts by such biases."""
    folder = make_model(**tiny_config(model_type))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    patched = plan_patches(tiny_config(model_type), CONTEXT)
    weights = checkpoint_tensors(folder, build(patched.config, torch.float32, "eager"))
    assert weights.keys() == loaded.keys()
    assert any(name.endswith(STORED_BUFFERS[model_type]) for name in loaded)
    for name, value in loaded.items():
        assert torch.equal(weights[name], value), name


def test_a_stored_buffer_that_we_compute_must_be_equal(make_model, tmp_path):
    model = build(plan_patches(sizes("qwen3_moe"), CONTEXT).config, torch.float32, "eager")
    model.model.register_buffer("order", torch.arange(3))
    tensors = load_file(make_model(**sizes("qwen3_moe")) / "model.safetensors")
    save_file(tensors | {"model.order": torch.arange(3)}, tmp_path / "model.safetensors")
    assert "model.norm.weight" in checkpoint_tensors(tmp_path, model)
    save_file(tensors | {"model.order": torch.tensor([0, 2, 1])}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="another value: model.order"):
        checkpoint_tensors(tmp_path, model)


# Routers in primitives of transformers: a softmax over the chosen, and sigmoids within groups over their sum.
ROUTED = ("gpt_oss", "deepseek_v3")


KERNELS = [(model_type, *kind) for model_type in ROUTED for kind in (("fp32", "MoE"), ("int4", "QMoE"))]


@pytest.mark.parametrize(("model_type", "precision", "kernel"), slow_unless([KERNELS[0], KERNELS[-1]], KERNELS))
def test_experts_become_the_kernel_of_onnxruntime(make_model, tmp_path, model_type, precision, kernel):
    folder = make_model(**sizes(model_type) | {"first_k_dense_replace": 0})
    bundle = export_model(folder, tmp_path / "bundle", backend="transformers", precision=precision).path
    ops = [node.op_type for node in onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False).graph.node]
    assert ops.count(kernel) == LAYERS
    assert "Loop" not in ops
