"""Every family of encoders: random models of transformers' own classes, in eager PyTorch and as exported bundles.

The oracle is transformers' eager module over the same checkpoint, in float64. Our own module is compared with it in
float64, the bundles as `plain_encoder.py` runs them, which imports neither edgeformer nor torch. Error: max |Δ| / max
|expected| over what is valid: padding may hold anything. The models are in `encoder_rows.py`.
"""

import functools
import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints
from unittest.mock import patch

import numpy as np
import onnx
import pytest
import torch
import transformers
from encoder_rows import ANSWER, ENCODERS, MASKED, TEXT, TOKEN, VOCABULARY
from safetensors.torch import load_file, save_file

from edgeformer.checkpoints.source import open_source
from edgeformer.config import EncoderConfig, LearnedPositions
from edgeformer.errors import WeightsError
from edgeformer.export import export_model
from edgeformer.export.reference.reference import Reference
from edgeformer.families import family_names, load_family
from edgeformer.families._layers import vary_attention
from edgeformer.models.model_spec import model_spec_of

LENGTHS = (24, 9, 1)
EAGER, LIMITS = 1e-6, {"fp32": 1e-5, "fp16": 5e-3}
MODELS = [(family, name) for family, row in ENCODERS.items() for name in row.models]
CLASSES = {
    None: transformers.AutoModel,
    MASKED: transformers.AutoModelForMaskedLM,
    TEXT: transformers.AutoModelForSequenceClassification,
    TOKEN: transformers.AutoModelForTokenClassification,
    ANSWER: transformers.AutoModelForQuestionAnswering,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that returns the models of a family by name, each made once."""

    @functools.cache
    def of_family(family):
        return {
            name: make(family, name, seed, tmp_path_factory.mktemp(f"{family}-{name}"))
            for seed, name in enumerate(ENCODERS[family].models)
        }

    return of_family


@pytest.fixture(scope="module")
def outcomes(models, tmp_path_factory):
    """Return a function that returns the outputs of plain onnxruntime for the bundles of a family, fast or slow."""

    @functools.cache
    def of_family(family, slow):
        made = {name: model for name, model in models(family).items() if is_slow(family, name) == slow}
        return run_bundles(family, made, tmp_path_factory.mktemp(family))

    return lambda family, name: of_family(family, is_slow(family, name))


def make(family, name, seed, folder):
    """Save a seeded random model, and run it on three texts of unequal length."""
    options = ENCODERS[family].sizes | ENCODERS[family].models[name]
    pooling, kind = options.pop("pooling", None), CLASSES[options.pop("head", None)]
    torch.manual_seed(seed)
    model = kind.from_config(transformers.CONFIG_MAPPING[family](**options))
    with torch.no_grad():
        # transformers starts with flat attention, norms of one and biases of zero, which would hide many faults.
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1 or "norm" in parameter_name:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        if getattr(model.config, "trigram_input", False):  # transformers lets padding into the trigram beside it
            model.get_input_embeddings().weight[model.config.pad_token_id] = 0
    model.save_pretrained(folder)
    if pooling is not None:
        write_modules(folder, **pooling)
    inputs = texts(seed, model.config)
    expected = oracle(kind, folder, inputs)
    if pooling is not None:
        expected["sentence_embedding"] = pooled(expected["last_hidden_state"], inputs["attention_mask"], **pooling)
    return SimpleNamespace(name=name, folder=folder, inputs=inputs, expected=expected)


def write_modules(folder, mode, normalize):
    """Write the files that sentence-transformers saves with a model."""
    kinds = ["Transformer", "Pooling", "Normalize"][: 2 + normalize]
    modules = [
        {"idx": index, "path": f"{index}_{kind}" if index else "", "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    options = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(options | {"word_embedding_dimension": 64}))


def texts(seed, config):
    generator = np.random.default_rng(seed)
    shape, mask = (len(LENGTHS), max(LENGTHS)), np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    first = 1 + (config.pad_token_id or 0)  # a padding token inside a text would have RoBERTa's row for padding
    kinds = max(getattr(config, "type_vocab_size", 1), 1)
    ids = generator.integers(first, VOCABULARY, shape)
    if getattr(config, "token_dropout", False):
        ids[:2, 3:6] = config.mask_token_id
    return {
        "input_ids": np.where(mask, ids, config.pad_token_id or 0),
        "other_ids": generator.integers(0, VOCABULARY, shape),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": generator.integers(0, kinds, shape),
    }


def oracle(kind, folder, inputs):
    """Return the states and logits of transformers, in float64."""
    model = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if hasattr(model.config, "type_vocab_size") else [])]
    states = []
    model.base_model.register_forward_hook(lambda module, arguments, output: states.append(output.last_hidden_state))
    with torch.no_grad(), in_doubles():
        output = model(**{name: torch.from_numpy(inputs[name]) for name in names})
    expected = {"last_hidden_state": states[0], **({"logits": output.logits} if "logits" in output else {})}
    expected |= {name: output[name] for name in ("start_logits", "end_logits") if name in output}
    return {name: tensor.numpy() for name, tensor in expected.items()}


@contextmanager
def in_doubles():
    """Keep ModernBERT and Longformer from going through float32, where the mask of float64 is minus infinity."""
    softmax = torch.nn.functional.softmax
    with (
        patch.object(torch.Tensor, "float", torch.Tensor.double),
        patch.object(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim)),
    ):
        yield


def pooled(states, mask, mode, normalize):
    means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    vectors = means if mode == "mean" else states[:, 0]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors


def run_bundles(family, made, work):
    """Export models of a family, and run the bundles in one plain process."""
    jobs = []
    for name, model in made.items():
        np.savez(work / f"{name}.npz", **model.inputs)
        for precision in precisions(family, name):
            bundle = work / f"{name}-{precision}"
            # The model that has both precisions also meets the gates of an export.
            verify = "quick" if len(precisions(family, name)) > 1 and precision == "fp32" else None
            export_model(model.folder, bundle, precision=precision, verify=verify)
            inputs, outputs = work / f"{name}.npz", work / f"{name}-{precision}.npz"
            jobs.append({"bundle": str(bundle), "inputs": str(inputs), "outputs": str(outputs)})
    (work / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("plain_encoder.py")
    done = subprocess.run(
        [sys.executable, str(script), str(work / "jobs.json")], capture_output=True, text=True, cwd=work, check=False
    )
    assert "ran without edgeformer and torch" in done.stdout, done.stderr
    return {
        (name, precision): np.load(work / f"{name}-{precision}.npz")
        for name in made
        for precision in precisions(family, name)
    }


def precisions(family, name):
    return ["fp32", "fp16"] if name == next(iter(ENCODERS[family].models)) else ["fp32"]


def valid(value, mask):
    """Return the valid part of an output: states and logits of tokens without padding, and outputs per text."""
    return value[mask != 0] if value.shape[:2] == mask.shape else value


def error(actual, expected, scale=None):
    """Return the largest error relative to the largest number of `scale`: all texts' where one has a single number."""
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected if scale is None else scale).max()


def eager(config, weights, inputs):
    """Return the outputs of edgeformer's module in float64."""
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if config.token_types > 1 else [])]
    outputs = Reference(model_spec_of(config), weights).forward(*(torch.from_numpy(inputs[name]) for name in names))
    return [output.numpy() for output in outputs]


def eager_error(model, config=None):
    """Return the worst error of edgeformer's module over all outputs; config: a changed config for the same weights."""
    source = open_source(model.folder)
    outputs = eager(config or source.config, source.weights(), model.inputs)
    mask, pairs = model.inputs["attention_mask"], zip(outputs, model.expected.values(), strict=True)
    return max(error(valid(ours, mask), valid(theirs, mask)) for ours, theirs in pairs)


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_our_module_is_transformers_in_float64(models, family, name):
    assert eager_error(models(family)[name]) < EAGER


def attentions(change):
    """Return a config with changed attention; change: returns the changed fields of an attention."""

    def changed(config):
        return vary_attention(config, [change(block.attention) for block in config.blocks])

    return changed


def wider(tokens):
    return attentions(lambda attention: {"window": attention.window + tokens} if attention.window else {})


def relations(**fields):
    return attentions(lambda attention: {"relative": replace(attention.relative, **fields)})


def feed_forwards(**fields):
    def changed(config):
        blocks = [replace(block, feed_forward=replace(block.feed_forward, **fields)) for block in config.blocks]
        return replace(config, blocks=tuple(blocks))

    return changed


def heads(**fields):
    return lambda config: replace(config, head=replace(config.head, **fields))


def masks(**fields):
    return lambda config: replace(config, token_dropout=replace(config.token_dropout, **fields))


FASTER = attentions(lambda attention: {"rotary": replace(attention.rotary, base=2 * attention.rotary.base)})
EARLIER = LearnedPositions(rows=50, offset=1)


def pre_to_post(config):
    """Return the config with norms after the branches; the last norm stays unused."""
    return replace(config, blocks=tuple(replace(block, norm_placement="post") for block in config.blocks))


# Negative controls: models that differ in one thing, with the same weights.
NEIGHBOURS = {
    ("bert", "masked-lm", "another gelu"): feed_forwards(activation="gelu_tanh"),
    ("bert", "masked-lm", "another gelu in the head"): heads(activation="gelu_tanh"),
    ("bert", "text-labels", "another pooler"): heads(dense="relu"),
    ("bert", "sentences", "the first token, not the mean"): heads(pooling="first"),
    ("bert", "sentences", "not normalized"): heads(normalize=False),
    ("roberta", "masked-lm", "positions from one"): lambda config: replace(config, position_embedding=EARLIER),
    ("xlm-roberta-xl", "masked-lm", "norms after the branches"): pre_to_post,
    ("roberta-prelayernorm", "masked-lm", "norms after the branches"): pre_to_post,
    ("nomic_bert", "masked-lm", "other rotary bases"): FASTER,
    ("jina_embeddings_v3", "sentences", "other rotary bases"): FASTER,
    ("gte", "masked-lm", "other rotary bases"): FASTER,
    ("gte", "sentences", "another gate"): feed_forwards(activation="gelu_tanh"),
    ("esm", "masked-lm", "other rotary bases"): FASTER,
    ("esm", "masked-lm", "masks are tokens"): lambda config: replace(config, token_dropout=None),
    ("esm", "text-labels", "other fractions of masks"): masks(trained=0.15),
    ("esm", "token-labels", "norms after the branches"): pre_to_post,
    ("deberta", "masked-lm", "queries meet no positions"): relations(content_to_position=False),
    ("deberta", "masked-lm", "positions meet no keys"): relations(position_to_content=False),
    ("deberta", "text-labels", "another scale"): attentions(lambda attention: {"scale": attention.head_dim**-0.5}),
    ("deberta-v2", "masked-lm", "other logarithmic rows"): relations(max_distance=30),
    ("deberta-v2", "masked-lm", "a row for every distance"): relations(max_distance=None),
    ("deberta-v2", "text-labels", "queries meet no positions"): relations(content_to_position=False),
    ("mpnet", "masked-lm", "other distances in the buckets"): attentions(
        lambda attention: {"relative": replace(attention.relative, max_distance=20)}
    ),
    ("albert", "masked-lm", "a block less"): lambda config: replace(config, blocks=config.blocks[1:]),
    ("electra", "text-labels", "another pooler"): heads(dense="tanh"),
    ("distilbert", "text-labels", "another pooler"): heads(dense="tanh"),
    ("modernbert", "masked-lm", "one key more on either side"): wider(1),
    ("modernbert", "masked-lm", "one key less on either side"): wider(-1),
    ("modernbert", "masked-lm", "other rotary bases"): FASTER,
    ("modernbert", "mean-of-text", "the first token, not the mean"): heads(pooling="first"),
    ("longformer", "masked-lm", "one key more on either side"): wider(1),
    ("longformer", "text-labels", "one key less on either side"): wider(-1),
    ("longformer", "text-labels", "one set of projections"): attentions(lambda _: {"global_projections": False}),
    ("longformer", "text-labels", "no global token"): attentions(
        lambda _: {"global_projections": False, "global_tokens": 0}
    ),
}


@pytest.mark.parametrize(("family", "name", "neighbour"), NEIGHBOURS)
def test_the_comparison_sees_a_neighbouring_model(models, family, name, neighbour):
    model, change = models(family)[name], NEIGHBOURS[family, name, neighbour]
    assert eager_error(model, change(open_source(model.folder).config)) > 100 * EAGER


EXPORTED_ALWAYS = {
    "bert": {*ENCODERS["bert"].models},
    "deberta-v2": {"masked-lm", "new-head"},
    "modernbert": {"masked-lm", "mean-of-text"},
}
"""The families whose graphs differ most from each other, and their models of which one has every kind of head; the
exports of the others are slow.
"""


def is_slow(family, name):
    """Return whether the export of a model is left to the slow tests."""
    return name not in EXPORTED_ALWAYS.get(family, ())


def exported(family, name, *rest):
    """Return a test case of (family, name, …) that reads an export."""
    return pytest.param(family, name, *rest, marks=pytest.mark.slow if is_slow(family, name) else ())


CASES = [
    exported(family, name, precision)
    for family, row in ENCODERS.items()
    for name in row.models
    for precision in precisions(family, name)
]


@pytest.mark.parametrize(("family", "name", "precision"), CASES)
def test_plain_onnxruntime_matches_transformers(models, outcomes, family, name, precision):
    model, outputs = models(family)[name], outcomes(family, name)[name, precision]
    mask, errors = model.inputs["attention_mask"], {}
    for output, expected in model.expected.items():
        errors[output] = error(valid(outputs[f"batch.{output}"], mask), valid(expected, mask))
        for row, length in enumerate(LENGTHS):
            alone = expected[row : row + 1]
            alone = alone[:, :length] if alone.shape[1] == mask.shape[1] else alone
            scale = valid(expected, mask) if alone.size == 1 else None
            errors[f"{output} of row {row} alone"] = error(outputs[f"row{row}.{output}"], alone, scale)
    assert max(errors.values()) <= LIMITS[precision], errors


@pytest.mark.parametrize(("family", "name", "precision"), CASES)
def test_padding_changes_nothing_and_is_finite(models, outcomes, family, name, precision):
    model, outputs = models(family)[name], outcomes(family, name)[name, precision]
    mask = model.inputs["attention_mask"]
    assert (model.inputs["input_ids"] != model.inputs["other_ids"])[mask == 0].any()
    for output in model.expected:
        batch, other = outputs[f"batch.{output}"], outputs[f"other.{output}"]
        assert np.array_equal(valid(batch, mask), valid(other, mask)), output
        assert np.isfinite(batch).all(), output


@pytest.mark.parametrize(("family", "name"), [exported(*model) for model in MODELS])
def test_a_graph_asks_for_segments_only_where_there_are_several(models, outcomes, family, name):
    several = getattr(transformers.AutoConfig.from_pretrained(models(family)[name].folder), "type_vocab_size", 0) > 1
    expected = ["input_ids", "attention_mask", *(["token_type_ids"] if several else [])]
    assert outcomes(family, name)[name, "fp32"]["inputs"].tolist() == expected


def test_blocks_that_share_parameters_are_stored_once(models, tmp_path):
    """The matrices that a pass packs are shared, too."""
    export_model(models("albert")["masked-lm"].folder, tmp_path / "bundle", verify=None)
    graph = onnx.load(tmp_path / "bundle" / "onnx" / "model.onnx", load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer if tensor.name.startswith("blocks.")}
    assert {name.split(".")[1] for name in stored} == {"0"}
    readers = [node for node in graph.node if "blocks.0.attention.qkv.weight" in node.input]
    assert len(readers) == 4
    assert len({node.name for node in graph.node}) == len(graph.node)


SENTENCES = [exported(*model) for model in MODELS if "pooling" in ENCODERS[model[0]].models[model[1]]]


@pytest.mark.parametrize(("family", "name"), SENTENCES)
def test_sentences_have_length_one_if_that_is_wished(outcomes, family, name):
    lengths = np.linalg.norm(outcomes(family, name)[name, "fp32"]["batch.sentence_embedding"], axis=1)
    assert (np.abs(lengths - 1) < 1e-6).all() == ENCODERS[family].models[name]["pooling"]["normalize"]


def test_every_family_of_encoders_has_at_least_three_models_here():
    encoders = {
        name for name in family_names() if get_type_hints(load_family(name).read_config)["return"] is EncoderConfig
    }
    assert {family.replace("-", "_") for family, row in ENCODERS.items() if len(row.models) >= 3} == encoders


def stored_otherwise(model, folder, change):
    """Write a folder with the same config.json and changed tensors."""
    shutil.copytree(model.folder, folder)
    save_file(change(load_file(model.folder / "model.safetensors")), folder / "model.safetensors")
    return folder


def in_old_names(tensors):
    """Rename the parameters of norms as TensorFlow does, and add a table that is not a weight."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        tensors = {key.replace(new, name): tensor for key, tensor in tensors.items()}
    assert any(name.endswith(".gamma") for name in tensors)
    return tensors | {"bert.embeddings.position_ids": torch.arange(48).unsqueeze(0)}


def with_prefix(tensors):
    """Return the tensors of the plain model in a model with heads, which stay unused."""
    whole = {f"bert.{name}": tensor for name, tensor in tensors.items()}
    unused = ["predictions.bias", "predictions.transform.LayerNorm.gamma", "seq_relationship.weight"]
    return whole | {f"cls.{name}": torch.zeros(2) for name in unused}


def with_both_names(tensors):
    """Add copies of the table and its bias under the names of the output projection."""
    table, bias = tensors["bert.embeddings.word_embeddings.weight"], tensors["cls.predictions.bias"]
    copies = {"cls.predictions.decoder.weight": table.clone(), "cls.predictions.decoder.bias": bias.clone()}
    return tensors | copies | {"bert.pooler.dense.bias": torch.zeros(64)}


@pytest.mark.parametrize(
    ("family", "name", "change"),
    [
        ("bert", "masked-lm", in_old_names),
        ("bert", "masked-lm", with_both_names),
        ("bert", "sentences", with_prefix),
        ("gte", "masked-lm", lambda tensors: {re.sub("^gte", "new", name): each for name, each in tensors.items()}),
    ],
)
def test_a_checkpoint_of_the_hub_holds_the_same_weights(models, tmp_path, family, name, change):
    model = models(family)[name]
    plain = open_source(model.folder).weights()
    hub = open_source(stored_otherwise(model, tmp_path / "hub", change)).weights()
    assert plain.keys() == hub.keys()
    assert all(torch.equal(plain[name], hub[name]) for name in plain)


@pytest.mark.parametrize(("ids", "words"), [("position", "does not count from 0"), ("token_type", "is not zero")])
def test_stored_ids_may_not_be_other_ones(models, tmp_path, ids, words):
    def change(tensors):
        return tensors | {f"bert.embeddings.{ids}_ids": torch.arange(48).flip(0).unsqueeze(0)}

    with pytest.raises(WeightsError, match=f"different: bert.embeddings.{ids}_ids {words}"):
        open_source(stored_otherwise(models("bert")["masked-lm"], tmp_path / "hub", change)).weights()


@pytest.mark.parametrize(
    ("family", "unknown"),
    [
        ("bert", "cls.predictions.transform.scale"),
        ("roberta", "lm_head.scale.weight"),
        ("xlm-roberta", "roberta.encoder.layer.0.attention.self.query_global.weight"),
        ("xlm-roberta-xl", "roberta.embeddings.LayerNorm.weight"),
        ("camembert", "lm_head.scale.weight"),
        ("data2vec-text", "data2vec_text.encoder.scale"),
        ("roberta-prelayernorm", "roberta_prelayernorm.encoder.layer.0.output.LayerNorm.weight"),
        ("megatron-bert", "bert.embeddings.LayerNorm.weight"),
        ("ernie", "ernie.embeddings.task_type_embeddings.weight"),
        ("nomic_bert", "nomic_bert.embeddings.position_embeddings.weight"),
        ("jina_embeddings_v3", "roberta.embeddings.position_embeddings.weight"),
        ("gte", "gte.embeddings.position_embeddings.weight"),
        ("electra", "electra.embeddings_project.scale"),
        ("albert", "albert.encoder.albert_layer_groups.1.albert_layers.0.ffn.bias"),
        ("deberta", "deberta.encoder.layer.0.attention.self.head_logits_proj.weight"),
        ("deberta-v2", "deberta.encoder.conv.conv.weight"),
        ("mpnet", "mpnet.embeddings.token_type_embeddings.weight"),
        ("eurobert", "lm_head.scale"),
        ("distilbert", "distilbert.embeddings.scale"),
        ("modernbert", "head.scale"),
        ("longformer", "longformer.encoder.layer.0.attention.self.other_global.weight"),
    ],
)
def test_a_tensor_of_another_name_is_not_ignored(models, tmp_path, family, unknown):
    def change(tensors):
        return tensors | {unknown: torch.zeros(2)}

    folder = stored_otherwise(models(family)["masked-lm"], tmp_path / "hub", change)
    with pytest.raises(WeightsError, match=f"(?m)unexpected: {unknown}$"):
        open_source(folder).weights()


def test_a_head_that_is_not_stored_is_missed(models, tmp_path):
    """A missing tensor is an error; transformers would initialize it randomly."""

    def change(tensors):
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("classifier")}

    folder = stored_otherwise(models("distilbert")["text-labels"], tmp_path / "hub", change)
    with pytest.raises(WeightsError, match=r"missing: classifier\.weight \[3, 64\]"):
        open_source(folder).weights()
