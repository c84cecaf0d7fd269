"""Every family of encoder-decoders: random models, in eager mode and exported, against transformers in float64.

In eager mode edgeformer's module is compared in float64; exported bundles are run by `plain_seq2seq.py`, which imports
neither edgeformer nor torch. Error: max |Δ| / max |value|. The models are in `seq2seq_rows.py`.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from seq2seq_rows import FAMILIES, START, T5GEMMA_SIZES
from torch import nn

from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weights import RandomWeights, parameter_shapes
from edgeformer.config import Seq2SeqConfig
from edgeformer.export import export_model
from edgeformer.export.reference.reference import Reference
from edgeformer.families import family_names, load_family
from edgeformer.models.model_spec import model_spec_of
from edgeformer.transformers_backend.float64 import computing_in_float64

SOURCES, TARGETS, TOTAL, PROMPT = (21, 10, 1), (9, 4, 1), 15, 9
GREEDY = 14
SPECIAL = 3
"""Tokens below this one are special."""

EAGER_LIMIT = 1e-12
# transformers computes sinusoids and rotations in float32, whatever the model is in. It stores those of PEGASUS.
SINUSOIDS_LIMIT = {"m2m_100": 1e-6, "marian": 1e-7, "t5gemma": 1e-7}
LIMITS = {"fp32": 1e-5, "fp16": 5e-3}
MODELS = [(family, name) for family, row in FAMILIES.items() for name in row.models]
EXPORTED = [
    (family, name, precision)
    for family, row in FAMILIES.items()
    for name in row.exported
    for precision in (["fp32", "fp16"] if name == row.exported[0] else ["fp32"])
]


@pytest.fixture(scope="module")
def models(make_model, tmp_path_factory):
    """Return a function that returns the folder of a model, its inputs, and the outputs of its oracle."""

    @functools.cache
    def of_name(family, name):
        row = FAMILIES[family]
        seed = list(row.models).index(name)
        if family == "transformer":
            folder = make_transformer(tmp_path_factory.mktemp(name), row.sizes | row.models[name], seed)
        else:
            folder = make_model(family, seed, auto=row.auto, **(row.sizes | row.models[name]))
        if name in row.free_heads:
            give_a_head(folder, seed)
        inputs = make_inputs(open_source(folder).config, seed)
        expected = of_torch(folder, inputs) if family == "transformer" else of_transformers(folder, row.auto, inputs)
        return folder, inputs, expected

    return of_name


def make_transformer(folder, config, seed):
    """Write a checkpoint of the transformer of 2017, with edgeformer's names."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(RandomWeights(open_source(folder).config, seed)), folder / "model.safetensors")
    return folder


def give_a_head(folder, seed):
    """Store an untied head in the checkpoint, and untie it in config.json as older versions did."""
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    shared = tensors["shared.weight"]
    tensors["lm_head.weight"] = torch.randn(shared.shape, generator=generator) / shared.shape[1] ** 0.5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))


def make_inputs(config, seed):
    """Return sources and targets; tokens after the length of a source are padding."""
    random = np.random.default_rng(seed)
    rows = len(SOURCES)
    targets = random.integers(SPECIAL, config.vocab_size, (rows, TOTAL))
    targets[:, 0] = START
    inputs = {"targets": targets, "target_lengths": np.array(TARGETS), "prompt": PROMPT}
    inputs |= {"greedy": GREEDY, "special": SPECIAL}
    if config.encoder.audio is not None:
        frames, bins = config.encoder.context_length, config.encoder.audio.mel_bins
        inputs["source_lengths"] = np.full(rows, frames)
        inputs["features"] = random.standard_normal((rows, bins, 2 * frames)).astype(np.float32)
    else:
        inputs["source_lengths"] = np.array(SOURCES)
        inputs["sources"] = random.integers(SPECIAL, config.encoder.vocab_size, (rows, max(SOURCES)))
    return inputs


def source_mask(inputs):
    lengths = torch.from_numpy(inputs["source_lengths"])
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()


def of_transformers(folder, auto, inputs):
    model = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    if "features" in inputs:
        source = {"input_features": torch.from_numpy(inputs["features"]).double()}
    else:
        source = {"input_ids": torch.from_numpy(inputs["sources"]), "attention_mask": source_mask(inputs)}
    model.generation_config = transformers.GenerationConfig(
        max_new_tokens=GREEDY,
        do_sample=False,
        decoder_start_token_id=START,
        no_repeat_ngram_size=1,
        suppress_tokens=list(range(SPECIAL)),
        use_cache=False,  # which T5 cannot have where its decoder is the deeper half
    )
    # Other things that Whisper's class does are part of edgeformer's runtime.
    generate = transformers.GenerationMixin.generate
    targets = torch.from_numpy(inputs["targets"])
    with torch.no_grad(), computing_in_float64():
        return {
            "states": model.get_encoder()(**source).last_hidden_state.numpy(),
            "logits": model(**source, decoder_input_ids=targets, use_cache=False).logits.numpy(),
            "greedy": generate(model, **source)[:, 1:].numpy(),
        }


def of_torch(folder, inputs):
    """The transformer of 2017, built from torch's layers."""
    config, weights = open_source(folder).config, load_file(folder / "model.safetensors")
    weights = {name: tensor.double() for name, tensor in weights.items()}
    encoder = torch_stack(config.encoder, nn.TransformerEncoderLayer, weights, "encoder")
    decoder = torch_stack(config.decoder, nn.TransformerDecoderLayer, weights, "decoder")
    embedding = weights["encoder.embedding.weight"]
    target_embedding = weights.get("decoder.embedding.weight", embedding)
    head = weights.get("decoder.head.weight", target_embedding)
    padding = source_mask(inputs) == 0

    def embed(table, ids):
        length, width = ids.shape[1], table.shape[1]
        places = torch.arange(length).double()[:, None] / 10000 ** (torch.arange(width).double() // 2 * 2 / width)
        places[:, 0::2], places[:, 1::2] = places[:, 0::2].sin(), places[:, 1::2].cos()
        return table[ids] * width**0.5 + places

    def write(ids):
        x = embed(target_embedding, ids)
        causal = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=torch.float64)
        for layer in decoder:
            x = layer(x, states, tgt_mask=causal, memory_key_padding_mask=padding)
        return x @ head.t() + weights.get("decoder.head.bias", 0)

    with torch.no_grad():
        states = embed(embedding, torch.from_numpy(inputs["sources"]))
        for layer in encoder:
            states = layer(states, src_key_padding_mask=padding)
        ids = torch.full((len(states), 1), START)
        for _ in range(GREEDY):
            last = write(ids)[:, -1].scatter(1, ids, -torch.inf)
            last[:, :SPECIAL] = -torch.inf
            ids = torch.cat((ids, last.argmax(-1, keepdim=True)), 1)
        logits = write(torch.from_numpy(inputs["targets"]))
    return {"states": states.numpy(), "logits": logits.numpy(), "greedy": ids[:, 1:].numpy()}


def torch_stack(config, kind, weights, half):
    block, layers = config.blocks[0], []
    sizes = (config.hidden_size, block.attention.num_heads, block.feed_forward.intermediate_size)
    options = {"layer_norm_eps": block.norm.eps, "activation": block.feed_forward.activation, "dtype": torch.float64}
    for index in range(len(config.blocks)):
        # Without dropout, training mode computes the same as inference, without torch's fused kernel.
        layers.append(kind(*sizes, dropout=0.0, batch_first=True, **options).train())
        fill(layers[-1], weights, f"{half}.blocks.{index}")
    return layers


def fill(layer, weights, block):
    """Fill a layer of torch; biases that edgeformer does not have are zero."""
    norms = ["attention_norm", "cross_attention_norm", "feed_forward_norm"]
    attentions = {"self_attn": "attention", "multihead_attn": "cross_attention"}
    if not hasattr(layer, "multihead_attn"):
        del norms[1], attentions["multihead_attn"]
    state = {}
    for last in ("weight", "bias"):
        for number, norm in enumerate(norms, 1):
            state[f"norm{number}.{last}"] = weights[f"{block}.{norm}.{last}"]
        for theirs, ours in attentions.items():
            parts = [weights.get(f"{block}.{ours}.{part}.{last}") for part in ("query", "key", "value")]
            if parts[0] is not None:
                state[f"{theirs}.in_proj_{last}"] = torch.cat(parts)
            state[f"{theirs}.out_proj.{last}"] = weights.get(f"{block}.{ours}.output.{last}")
        for theirs, ours in (("linear1", "up"), ("linear2", "down")):
            state[f"{theirs}.{last}"] = weights.get(f"{block}.feed_forward.{ours}.{last}")
    for name, parameter in layer.named_parameters():
        value = state.get(name)
        parameter.data = torch.zeros_like(parameter) if value is None else value


def of_our_module(folder, inputs):
    source = open_source(folder)
    reference = Reference(model_spec_of(source.config), source.weights())
    mask, targets = source_mask(inputs), torch.from_numpy(inputs["targets"])
    if "features" in inputs:
        read = (torch.from_numpy(inputs["features"]).double(),)
    else:
        read = (torch.from_numpy(inputs["sources"]), mask)
    caches = reference.empty_caches(len(targets))
    with reference.loaded():
        states, sources = reference.module.encode(*read)
        logits, _ = reference.module.decode(targets, torch.ones_like(targets), mask, caches, sources)
    return {"states": states.numpy(), "logits": logits.numpy()}


def relative_error(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


def errors(actual, expected, inputs):
    """Return the worst error of logits, and of states without padding."""
    valid = source_mask(inputs).bool().numpy()
    return {
        "states": relative_error(actual["states"][valid], expected["states"][valid]),
        "logits": relative_error(actual["logits"], expected["logits"]),
    }


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_our_module_is_that_of_transformers(models, family, name):
    folder, inputs, expected = models(family, name)
    found = errors(of_our_module(folder, inputs), expected, inputs)
    assert max(found.values()) < SINUSOIDS_LIMIT.get(family, EAGER_LIMIT), found


@pytest.fixture(scope="module")
def outcomes(models, tmp_path_factory):
    """Return a function that returns the outputs of a family's bundles, fast or slow, in one plain process."""

    @functools.cache
    def of_family(family, slow):
        work, jobs = tmp_path_factory.mktemp(family), []
        for _, name, precision in (job for job in EXPORTED if job[0] == family and is_slow(*job[:2]) == slow):
            folder, inputs, _ = models(family, name)
            np.savez(work / f"{name}.npz", **inputs)
            bundle = work / f"{name}-{precision}"
            # The first model also meets the gates of an export.
            verify = "quick" if (family, name, "fp16") in EXPORTED and precision == "fp32" else None
            manifest = export_model(folder, bundle, precision=precision, verify=verify).manifest
            stored = {parameter for weight in manifest.weights.values() for parameter in weight.parameters}
            assert parameter_shapes(manifest.model).keys() <= stored
            jobs.append({"bundle": str(bundle), "inputs": str(work / f"{name}.npz"), "outputs": f"{bundle}.npz"})
        (work / "jobs.json").write_text(json.dumps(jobs))
        script = Path(__file__).with_name("plain_seq2seq.py")
        line = [sys.executable, str(script), str(work / "jobs.json")]
        done = subprocess.run(line, capture_output=True, text=True, cwd=work, check=False)
        assert "ran without edgeformer and torch" in done.stdout, done.stderr
        return {Path(job["bundle"]).name: np.load(job["outputs"]) for job in jobs}

    return lambda family, name: of_family(family, is_slow(family, name))


def errors_of_bundle(outputs, expected, inputs):
    """Return the worst error of a bundle: of one text alone, and of all texts with padding."""
    states, logits, lengths = expected["states"], expected["logits"], inputs["source_lengths"]
    parts = {
        "states alone": (outputs["alone_states"], states[1:2, : lengths[1]]),
        "prefill alone": (outputs["alone_prefill"], logits[1:2, :PROMPT]),
        "steps alone": (outputs["alone_steps"], logits[1:2, PROMPT:]),
    }
    for row, (length, target) in enumerate(zip(lengths, TARGETS, strict=True)):
        steps = outputs["steps"][row]
        parts[f"states of row {row}"] = (outputs["states"][row, :length], states[row, :length])
        parts[f"prefill of row {row}"] = (outputs["prefill"][row, :target], logits[row, :target])
        parts[f"steps of row {row}"] = (steps, logits[row, target : target + len(steps)])
    return {part: relative_error(*pair) for part, pair in parts.items()}


EXPORTED_ALWAYS = {
    "bart": {"plain"},
    "t5": {"plain", "v1.1"},
    "transformer": {"paper", "apart"},
    "whisper": {"plain"},
}
"""The models whose graphs differ most from each other, by family; the exports of the others are slow."""


def is_slow(family, name):
    """Return whether the export of a model is left to the slow tests."""
    return name not in EXPORTED_ALWAYS.get(family, ())


def exported(family, name, *rest):
    """Return a test case of (family, name, …) that reads an export."""
    return pytest.param(family, name, *rest, marks=pytest.mark.slow if is_slow(family, name) else ())


@pytest.mark.parametrize(("family", "name", "precision"), [exported(*job) for job in EXPORTED])
def test_plain_onnxruntime_matches_transformers(models, outcomes, family, name, precision):
    _, inputs, expected = models(family, name)
    outputs = outcomes(family, name)[f"{name}-{precision}"]
    found = errors_of_bundle(outputs, expected, inputs)
    assert max(found.values()) <= LIMITS[precision], found
    assert outputs["cache_tail_is_untouched"].all()


@pytest.mark.parametrize(("family", "name"), [exported(*job[:2]) for job in EXPORTED if job[2] == "fp32"])
def test_greedy_tokens_are_those_of_transformers(models, outcomes, family, name):
    greedy = models(family, name)[2]["greedy"]
    assert outcomes(family, name)[f"{name}-fp32"]["greedy"].tolist() == greedy.tolist()


# Negative controls by family: a field, and a wrong value that keeps all shapes.
NEIGHBOURS = {
    "bart": {"activation_function": "relu"},
    "led": {"attention_window": 10},
    "m2m_100": {"pad_token_id": 2},
    "marian": {"scale_embedding": False},
    "mbart": {"activation_function": "relu"},
    "mt5": {"relative_attention_max_distance": 12},
    "pegasus": {"scale_embedding": False},
    "plbart": {"scale_embedding": False},
    "t5": {"scale_decoder_outputs": False},
    "t5gemma": {"decoder": T5GEMMA_SIZES | {"attn_logit_softcapping": 2.1}},
    "transformer": {"activation": "gelu"},
    "umt5": {"relative_attention_max_distance": 12},
    "whisper": {"encoder_attention_heads": 8},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_comparison_sees_a_neighbouring_model(models, family, tmp_path):
    folder, inputs, expected = models(family, next(iter(FAMILIES[family].models)))
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | NEIGHBOURS[family]))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    found = errors(of_our_module(tmp_path, inputs), expected, inputs)
    assert found["logits"] > 100 * LIMITS["fp32"], found


def test_the_comparison_sees_the_bundle_of_a_neighbouring_model(models, outcomes):
    _, inputs, _ = models("bart", "plain")
    _, _, other = models("bart", "unequal")
    found = errors_of_bundle(outcomes("bart", "plain")["plain-fp32"], other, inputs)
    assert min(found.values()) > 100 * LIMITS["fp32"], found


OF_PICTURES = {"vision_encoder_decoder"}
"""Families whose sources are pictures; test_picture_to_text.py has their models."""


def test_every_seq2seq_family_has_three_models_here():
    families = {
        name for name in family_names() if get_type_hints(load_family(name).read_config)["return"] is Seq2SeqConfig
    }
    assert families - OF_PICTURES == FAMILIES.keys() == NEIGHBOURS.keys()
    assert all(len(row.models) >= 3 for row in FAMILIES.values())
