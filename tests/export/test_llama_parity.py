"""Llamas of every option, exported, run by plain onnxruntime, against transformers in float32.

The oracle is transformers' own eager module over the same checkpoint; the runner is `plain_onnxruntime.py`, which
imports neither edgeformer nor torch. Error: max |Δlogit| / max |logit|.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from edgeformer.export import export_model

PROMPT, STEPS, LENGTHS = 24, 32, (24, 9, 1)
LIMITS = {"fp32": 1e-5, "fp16": 5e-3}

# What each model adds to the defaults of `make_llama` (4 heads, 2 key-value heads, untied, no bias).
MODELS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "wide-heads": {"head_dim": 32},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "large-eps": {"rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "gelu": {"hidden_act": "gelu", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 128,
            "short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
        },
    },
    "proportional": {
        "rope_parameters": {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
    # Sizes that the attention kernel does not take: rotation outside it, then all of it in primitives.
    "head-dim-8": {"head_dim": 8},
    "head-dim-12": {"hidden_size": 48},
    # As downloaded: shards, bfloat16.
    "sharded-bf16": {"num_key_value_heads": 4, "tie_word_embeddings": True},
}  # fmt: skip
STORED = {"sharded-bf16": {"dtype": torch.bfloat16, "shard_size": "40KB"}}
EXPORT_OPTIONS = {"longrope": {"context_length": 128}}


@pytest.fixture(scope="module")
def outcomes(make_llama, tmp_path_factory):
    """Export every model in both precisions, run all bundles in one plain process, and compute the oracle's logits."""
    work = tmp_path_factory.mktemp("work")
    jobs, expected = [], {}
    for index, (name, options) in enumerate(MODELS.items()):
        folder = make_llama(seed=index, **options, **STORED.get(name, {}))
        tokens = np.random.default_rng(index).integers(0, 131, (len(LENGTHS), PROMPT + STEPS))
        inputs = work / f"{name}.npz"
        np.savez(inputs, tokens=tokens, prompt=PROMPT, lengths=np.array(LENGTHS))
        expected[name] = oracle(folder, tokens)
        for precision in LIMITS:
            bundle = work / f"{name}-{precision}"
            export_model(folder, bundle, precision=precision, verify=None, **EXPORT_OPTIONS.get(name, {}))
            outputs = work / f"{name}-{precision}.npz"
            jobs.append({"bundle": str(bundle), "inputs": str(inputs), "outputs": str(outputs)})
    (work / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("plain_onnxruntime.py")
    done = subprocess.run(
        [sys.executable, str(script), str(work / "jobs.json")], capture_output=True, text=True, cwd=work, check=False
    )
    assert "ran without edgeformer and torch" in done.stdout, done.stderr
    return {
        (name, precision): (np.load(work / f"{name}-{precision}.npz"), expected[name])
        for name in MODELS
        for precision in LIMITS
    }


def oracle(folder, tokens):
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)).logits.numpy()
        ids = torch.from_numpy(tokens[:1, :PROMPT])
        greedy, cache = [], None
        for _ in range(64):
            step = model(ids, past_key_values=cache, use_cache=True)
            ids, cache = step.logits[:, -1:].argmax(-1), step.past_key_values
            greedy.append(int(ids))
    return {"logits": logits, "greedy": greedy}


def relative_error(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("name", MODELS)
def test_plain_onnxruntime_matches_transformers(outcomes, name, precision):
    outputs, expected = outcomes[name, precision]
    logits, rows = expected["logits"], range(len(LENGTHS))
    parts = {
        "prefill": (outputs["prefill"], logits[:1, :PROMPT]),
        "decode": (outputs["decode"], logits[:1, PROMPT:]),
        "chunks": (outputs["chunks"], logits[:1]),
        "growing": (outputs["growing"], logits[:1]),
    }
    for row, length in zip(rows, LENGTHS, strict=True):
        parts[f"batch row {row}"] = (outputs["batch_prefill"][row, :length], logits[row, :length])
        parts[f"batch row {row} decode"] = (outputs["batch_decode"][row], logits[row, length : length + 8])
    errors = {part: relative_error(*pair) for part, pair in parts.items()}
    assert max(errors.values()) <= LIMITS[precision], errors
    assert outputs["cache_tail_is_untouched"].all()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_transformers(outcomes, name):
    outputs, expected = outcomes[name, "fp32"]
    assert outputs["greedy"].tolist() == expected["greedy"]


def test_the_comparison_sees_a_neighbouring_model(outcomes):
    outputs, _ = outcomes["yarn", "fp16"]
    _, other = outcomes["linear", "fp16"]
    assert relative_error(outputs["prefill"], other["logits"][:1, :PROMPT]) > 10 * LIMITS["fp16"]
