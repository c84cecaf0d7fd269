"""Convolutions and recurrences of transformers through `--backend transformers`: their states, proof, and bundles."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[1] / "families"))

from checkpoints.tiny_transformers import CONTEXT, tiny_config
from plain_onnxruntime import run as run_plain

from edgeformer import ops
from edgeformer.contract.tensors import ConvState, KeyValueState, RecurrentState
from edgeformer.errors import ExportError
from edgeformer.export import export_model
from edgeformer.export.importers.from_transformers import plan_patches
from edgeformer.export.importers.transformers_proof import prove
from edgeformer.transformers_backend.hf_module import build
from edgeformer.transformers_backend.patches.recurrent import RecurrentPatch
from edgeformer.transformers_backend.tensors.weights import checkpoint_tensors

LIMIT = 1e-5
ATTENTION = KeyValueState(num_kv_heads=2, head_dim=32)
SMALLER = KeyValueState(num_kv_heads=2, head_dim=16)
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
}  # fmt: skip
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2}

# Fields of each model, and what its layers must turn out to keep.
MODELS = {
    "lfm3": ({}, ((ConvState(channels=64, width=6),), (ATTENTION,))),
    "olmo_hybrid": (
        DELTA,
        ((ConvState(channels=80, width=2), RecurrentState(num_heads=4, key_dim=8, value_dim=12)), (SMALLER,)),
    ),
    "lara_mini": (
        DELTA,
        ((ConvState(channels=80, width=2), RecurrentState(num_heads=4, key_dim=8, value_dim=12)), (ATTENTION,)),
    ),
    "nemotron_h": (
        MAMBA,
        (
            (ConvState(channels=96, width=3), RecurrentState(name="ssm", num_heads=4, key_dim=8, value_dim=16)),
            (),
            (ATTENTION,),
            (),
        ),
    ),
}


PROMPT, STEPS, LENGTHS, GREEDY = 24, 12, (24, 9, 1), 4


def sizes(model_type):
    return tiny_config(model_type, **MODELS[model_type][0])


@pytest.mark.parametrize("model_type", MODELS)
def test_layers_keep_what_transformers_gives_to_its_cache(model_type):
    kept = MODELS[model_type][1]
    layers = plan_patches(sizes(model_type), CONTEXT).plan.geometry.layers
    assert set(layers) == set(kept)
    assert layers[: len(set(kept))] == kept[: len(set(kept))]


@pytest.fixture(scope="module", params=MODELS)
def opened(request, make_model):
    """Return a plan, the weights by transformers' names, and their folder."""
    fields = sizes(request.param)
    patched, folder = plan_patches(fields, CONTEXT), make_model(**fields)
    return patched, checkpoint_tensors(folder, build(patched.config, torch.float32, "eager")), folder


def test_the_proof_holds_to_rounding_of_float64(opened):
    patched, weights, folder = opened
    assert prove(patched.config, patched.plan, weights, folder) < 1e-11


def forgotten(monkeypatch):
    known = RecurrentPatch.past_state
    monkeypatch.setattr(RecurrentPatch, "past_state", lambda *given: torch.zeros_like(known(*given)))


def with_padding(monkeypatch):
    monkeypatch.setattr(ops, "token_mask", lambda mask, ids: torch.ones_like(ids, dtype=torch.bool))


def convolved_backwards(monkeypatch):
    known = ops.causal_conv
    monkeypatch.setattr(ops, "causal_conv", lambda x, weight, *rest: known(x, weight.flip(1), *rest))


FAULTS = {"states forgotten": forgotten, "padding enters": with_padding, "taps in reverse": convolved_backwards}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses_other_states(opened, monkeypatch, fault):
    patched, weights, folder = opened
    FAULTS[fault](monkeypatch)
    with pytest.raises(ExportError, match="does not compute what it computes in transformers"):
        prove(patched.config, patched.plan, weights, folder)


@pytest.mark.parametrize("model_type", ["olmo_hybrid", "nemotron_h"])
def test_plain_onnxruntime_matches_untouched_transformers(make_model, tmp_path, model_type):
    """The states are in place; a ragged batch has its padding on the right."""
    folder = make_model(**sizes(model_type))
    tokens = np.random.default_rng(0).integers(0, 131, (len(LENGTHS), PROMPT + STEPS))
    bundle = export_model(folder, tmp_path / "bundle", backend="transformers").path
    found = run_plain(bundle, {"tokens": tokens, "prompt": PROMPT, "lengths": np.array(LENGTHS), "greedy": GREEDY})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens), use_cache=False).logits.numpy()
    parts = {
        "prefill": (found["prefill"], expected[:1, :PROMPT]),
        "decode": (found["decode"], expected[:1, PROMPT:]),
        "chunks": (found["chunks"], expected[:1]),
        "dynamic": (found["dynamic"], expected[:1]),
    }
    for row, length in enumerate(LENGTHS):
        parts[f"batch row {row}"] = (found["batch_prefill"][row, :length], expected[row, :length])
        steps = found["batch_decode"][row]
        parts[f"steps of row {row}"] = (steps, expected[row, length : length + len(steps)])
    for name, (actual, wanted) in parts.items():
        assert np.abs(actual - wanted).max() <= LIMIT * np.abs(expected).max(), name


REFUSALS = {
    "jamba": "layer 0 computes its state by code of its own",  # Mamba-1, whose state decays by element
    "kimi_linear": "layer 0 computes its state by code of its own",
    "inkling_text": "layer 0 keeps the inputs of several convolutions",
    "deepseek_v32": "chooses the keys that it attends to by an index of its own .sparse attention.",
}


@pytest.mark.parametrize("model_type", REFUSALS)
def test_other_states_are_refused_without_weights(model_type):
    with pytest.raises(ExportError, match=REFUSALS[model_type]):
        plan_patches(tiny_config(model_type), CONTEXT)
