"""Every family: random models of transformers' own class, exported, verified, and run by plain onnxruntime.

By default the first model of each family with a graph of its own is run, in float32, and the Llamas that other tests
need or that have kernels of their own; the others, and float16 but for a few families, are `slow`. In float16 a variant
has the same ops of the same types as the family that it is a variant of, so those of `WITH_ALL_OPS` are run.
The oracle is transformers' eager module over the same checkpoint, in float32; the runner is `plain_onnxruntime.py`,
which imports neither edgeformer nor torch. Error: max |Δlogit| / max |logit|. The models are in `rows.py`.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from rows import DISTINCT, FAMILIES, VOCABULARY, WITH_ALL_OPS, fields_of

from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.export import export_model, verify
from edgeformer.families import family_names, load_family

PROMPT, STEPS, LENGTHS = 24, 32, (24, 9, 1)
GREEDY = 24
LIMITS = {"fp32": 1e-5, "fp16": 5e-3}


FAST_LLAMAS = {"gqa", "linear", "yarn", "longrope", "head-dim-12", "sharded-bf16"}
FAST_IN_FLOAT16 = {"llama", "gemma2", "gpt_oss", "qwen3_next"}


def is_slow(family, name, precision="fp32"):
    """Return whether a model is left to the slow tests: most families are variants of each other."""
    if precision == "fp16" and family not in FAST_IN_FLOAT16:
        return True
    if family == "llama":
        return name not in FAST_LLAMAS
    return family not in DISTINCT or name != next(iter(FAMILIES[family].models))


def marked(*case):
    """Return a test case of (family, name) or (family, name, precision), slow where the model is."""
    return pytest.param(*case, marks=pytest.mark.slow if is_slow(*case) else ())


MODELS = [marked(family, name) for family, row in FAMILIES.items() for name in row.models]


@pytest.fixture(scope="module")
def outcomes(make_model, tmp_path_factory):
    """Return a function that returns the outputs of a model, and those of transformers."""

    @functools.cache
    def of_family(family, slow):
        return run_family(family, slow, make_model, tmp_path_factory.mktemp(family))

    return lambda family, name, precision: of_family(family, is_slow(family, name, precision))[name, precision]


def run_family(family, slow, make_model, work):
    """Export a family's models, run the bundles in one plain process, and compute the oracle's logits.

    slow: which of its models and precisions. float32 graphs pass the parity gates on their way.
    """
    jobs, expected = [], {}
    for index, name in enumerate(FAMILIES[family].models):
        chosen = [precision for precision in precisions(family, name) if is_slow(family, name, precision) == slow]
        if not chosen:
            continue
        row = FAMILIES[family]
        folder = make_model(family, seed=index, **fields_of(family, name), **row.stored.get(name, {}))
        tokens = np.random.default_rng(index).integers(0, VOCABULARY, (len(LENGTHS), PROMPT + STEPS))
        inputs = work / f"{name}.npz"
        np.savez(inputs, tokens=tokens, prompt=PROMPT, lengths=np.array(LENGTHS), greedy=GREEDY)
        expected[name] = oracle(folder, tokens)
        for precision in chosen:
            bundle = work / f"{name}-{precision}"
            exported = export_model(folder, bundle, precision=precision, verify=None, **row.exported.get(name, {}))
            if precision == "fp32":
                report = verify(bundle, folder, mode="quick")
                assert report.passed, f"{name}: {report.describe()}"
            stored = {parameter for weight in exported.manifest.weights.values() for parameter in weight.parameters}
            assert parameter_shapes(exported.manifest.model).keys() <= stored
            jobs.append({"bundle": str(bundle), "inputs": str(inputs), "outputs": f"{bundle}.npz"})
    (work / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("plain_onnxruntime.py")
    done = subprocess.run(
        [sys.executable, str(script), str(work / "jobs.json")], capture_output=True, text=True, cwd=work, check=False
    )
    assert "ran without edgeformer and torch" in done.stdout, done.stderr
    ran = [(name, precision) for name in expected for precision in precisions(family, name)]
    return {
        (name, precision): (np.load(work / f"{name}-{precision}.npz"), expected[name])
        for name, precision in ran
        if is_slow(family, name, precision) == slow
    }


def precisions(family, name):
    in_half = family in WITH_ALL_OPS and name == next(iter(FAMILIES[family].models))
    return ["fp32", "fp16"] if in_half or name == "sharded-bf16" else ["fp32"]


def oracle(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)).logits.numpy()
        ids = torch.from_numpy(tokens[:1, :PROMPT])
        for _ in range(GREEDY):
            # Without its cache, because transformers has several kinds of it.
            ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), 1)
    return {"logits": logits, "greedy": ids[0, PROMPT:].tolist()}


def relative_error(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


CASES = [
    marked(family, name, precision)
    for family, row in FAMILIES.items()
    for name in row.models
    for precision in precisions(family, name)
]


@pytest.mark.parametrize(("family", "name", "precision"), CASES)
def test_plain_onnxruntime_matches_transformers(outcomes, family, name, precision):
    outputs, expected = outcomes(family, name, precision)
    logits, rows = expected["logits"], range(len(LENGTHS))
    parts = {
        "prefill": (outputs["prefill"], logits[:1, :PROMPT]),
        "decode": (outputs["decode"], logits[:1, PROMPT:]),
        "chunks": (outputs["chunks"], logits[:1]),
        "dynamic": (outputs["dynamic"], logits[:1]),
    }
    for row, length in zip(rows, LENGTHS, strict=True):
        parts[f"batch row {row}"] = (outputs["batch_prefill"][row, :length], logits[row, :length])
        parts[f"batch row {row} decode"] = (outputs["batch_decode"][row], logits[row, length : length + 8])
    errors = {part: relative_error(*pair) for part, pair in parts.items()}
    assert max(errors.values()) <= LIMITS[precision], errors
    assert outputs["cache_tail_is_untouched"].all()


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_greedy_tokens_are_those_of_transformers(outcomes, family, name):
    outputs, expected = outcomes(family, name, "fp32")
    assert outputs["greedy"].tolist() == expected["greedy"]


@pytest.mark.parametrize("family", ["llama"])
def test_the_comparison_sees_a_neighbouring_model(outcomes, family):
    outputs, _ = outcomes(family, "yarn", "fp32")
    _, other = outcomes(family, "linear", "fp32")
    assert relative_error(outputs["prefill"], other["logits"][:1, :PROMPT]) > 100 * LIMITS["fp32"]


def test_every_family_of_decoders_has_at_least_three_models_here():
    # `generic`, which may be anything, is no model_type of transformers; tests/families/test_generic.py has its models.
    families = {name for name in family_names() if load_family(name).is_decoder}
    assert {family for family, row in FAMILIES.items() if len(row.models) >= 3} == families
