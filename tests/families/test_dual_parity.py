"""Every family of dual encoders: random models of transformers' own classes, in eager PyTorch and as bundles.

The oracle is transformers' eager module over the same checkpoint, in float64, on what its own tokenizer and processor
make of texts and pictures. Error: max |Δ| / max |expected|. The models are in `dual_rows.py`.
"""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from dual_rows import DUAL, END, TEXT, TEXTS, make_dual
from vision_rows import MLP

from edgeformer.checkpoints.source import open_source
from edgeformer.config import DecoderConfig, DualEncoderConfig, Grid
from edgeformer.errors import BundleError, ConfigError, ExportError
from edgeformer.export import export_model, verify
from edgeformer.export.importers.checkpoint import open_checkpoint
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.importers.pictures import dual_texts
from edgeformer.export.importers.pictures.dual_texts import compare_texts, with_padding_token
from edgeformer.export.reference.reference import Reference
from edgeformer.families import family_names, load_family, read_model_config
from edgeformer.manifest.accounting import account
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load
from edgeformer.runtime.tasks.vision import similarity as similarity_module

EAGER, LIMITS = 1e-6, {"fp32": 1e-5, "fp16": 5e-3}
SCALED = 2
"""How many times the limit logits may err: their scale multiplies what is lost of the cosines of both vectors."""

MODELS = [(family, name) for family, row in DUAL.items() for name in row]
OUTPUTS = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that returns a model by family and name, each made once."""

    @functools.cache
    def of(family, name):
        return make_dual(family, name, tmp_path_factory.mktemp(family))

    return of


@pytest.fixture(scope="module")
def bundles(models, tmp_path_factory):
    """Return a function that returns a verified float32 bundle of a model, each made once."""

    @functools.cache
    def of(family, name):
        folder = tmp_path_factory.mktemp("bundle") / "bundle"
        return export_model(models(family, name).folder, folder, precision="fp32", verify="quick").path

    return of


def error(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


def eager(model, config=None):
    """Return the largest error of our module in float64; config: a changed one for the same weights."""
    source = open_source(model.folder)
    reference = Reference(model_spec_of(config or source.config), source.weights())
    found = reference.forward(*model.inputs.values())
    return max(error(each.numpy(), model.expected[name]) for name, each in zip(OUTPUTS, found, strict=True))


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_the_module_is_that_of_transformers(models, family, name):
    model = models(family, name)
    assert eager(model) <= EAGER
    told = account(open_source(model.folder).config).parameters
    stored = transformers.AutoModel.from_pretrained(model.folder)
    assert told == sum(each.numel() for each in stored.parameters())


def text(**change):
    """Return a change of the head of the half of texts."""
    return lambda config: replace(config, text=replace(config.text, head=replace(config.text.head, **change)))


NEIGHBOURS = {
    ("clip", "end", "the largest id"): text(place="largest", end=None),
    ("clip", "end", "the last token"): text(place="last", end=None),
    ("clip", "old end", "the end token that config.json names"): text(place="end", end=2),
    ("clip", "end", "a text that sees what is behind it"): lambda config: replace(
        config,
        text=replace(
            config.text,
            blocks=tuple(replace(each, attention=replace(each.attention, causal=False)) for each in config.text.blocks),
        ),
    ),
    ("siglip", "both", "the first token"): text(place="end", end=2),
    ("clip", "gelu", "patches of rows"): lambda config: replace(
        config,
        vision=replace(
            config.vision, pooler=replace(config.vision.pooler, norm=None), trained_grid=Grid(rows=2, columns=2)
        ),
    ),
}


@pytest.mark.parametrize(("family", "name", "neighbour"), NEIGHBOURS)
def test_the_comparison_sees_a_neighbouring_model(models, family, name, neighbour):
    model = models(family, name)
    config = NEIGHBOURS[family, name, neighbour](open_source(model.folder).config)
    assert eager(model, config) > 1000 * EAGER


CASES = [
    pytest.param(family, name, precision, marks=() if name in ("end", "both") and fast else pytest.mark.slow)
    for family, name in MODELS
    for precision, fast in (("fp32", True), ("fp16", False))
]


@pytest.mark.parametrize(("family", "name", "precision"), CASES)
def test_a_bundle_computes_what_transformers_does(models, bundles, tmp_path, family, name, precision):
    """From the same texts and pictures, so that tokenizer and processor are compared, too; and the joined graph."""
    model, limit = models(family, name), LIMITS[precision]
    if precision == "fp32":
        folder = bundles(family, name)
    else:
        folder = export_model(model.folder, tmp_path / "bundle", precision=precision, verify="quick").path
    ours = load(folder)
    assert error(ours.similarity(model.pictures, TEXTS), model.expected["logits_per_image"]) <= SCALED * limit
    assert error(ours.embed(TEXTS), model.expected["text_embeds"]) <= limit
    assert error(ours.embed(images=model.pictures), model.expected["image_embeds"]) <= limit
    for row, each in enumerate(TEXTS):  # alone, so that a batch and its padding change nothing
        assert error(ours.embed(each), model.expected["text_embeds"][row]) <= limit
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx")
    feeds = {
        name: np.float32(each) if each.is_floating_point() else each.numpy() for name, each in model.inputs.items()
    }
    for output, found in zip(OUTPUTS, session.run(list(OUTPUTS), feeds), strict=True):
        assert error(found, model.expected[output]) <= limit * (SCALED if output.startswith("logits") else 1)


@pytest.mark.slow
@pytest.mark.parametrize("family", DUAL)
@pytest.mark.parametrize("options", [{"ops": "standard"}, {"ops": "portable"}, {"precision": "int8"}], ids=str)
def test_other_op_sets_and_precisions(models, tmp_path, family, options):
    model = models(family, next(iter(DUAL[family])))
    ours = load(export_model(model.folder, tmp_path / "bundle", **options, verify="quick").path)
    limit = LIMITS["fp32"] if "ops" in options else 0.2
    assert error(ours.similarity(model.pictures, TEXTS), model.expected["logits_per_image"]) <= limit


@pytest.mark.slow
@pytest.mark.parametrize("deployment", ["server", "web", "mobile"])
def test_deployments(models, tmp_path, deployment):
    model = models("siglip", "both")
    bundle = export_model(model.folder, tmp_path / "bundle", deployment=deployment, verify="quick").path
    assert error(load(bundle).similarity(model.pictures, TEXTS), model.expected["logits_per_image"]) <= 0.2
    assert ("joined" in Manifest.read(bundle).graphs) is (deployment != "mobile")


def test_every_dual_family_has_three_models_here():
    returned = {name: get_type_hints(load_family(name).read_config)["return"] for name in family_names()}
    dual = {
        name for name, config in returned.items()
        if DualEncoderConfig in get_args(config) and DecoderConfig not in get_args(config)
    }  # fmt: skip
    assert {family for family, row in DUAL.items() if len(row) >= 3} == dual


def with_manifest(bundle, folder, **change):
    """Return a copy of a bundle with another similarity in its manifest."""
    for path in bundle.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(bundle)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    content = json.loads((folder / "edgeformer.json").read_text())
    content["similarity"] |= change
    (folder / "edgeformer.json").write_text(json.dumps(content))
    return folder


def test_a_swapped_scale_and_bias_fail_verification(models, bundles, tmp_path):
    model, bundle = models("siglip", "both"), bundles("siglip", "both")
    numbers = Manifest.read(bundle).similarity
    assert verify(bundle, model.folder, mode="quick").passed
    wrong = with_manifest(bundle, tmp_path / "wrong", scale=abs(numbers.bias) + 1, bias=numbers.scale)
    report = verify(wrong, model.folder, mode="quick")
    failed = {check.name.partition(",")[0].partition(":")[0] for check in report.failures()}
    assert failed == {"similarity"}
    wrong = with_manifest(bundle, tmp_path / "rounded", scale=1.001 * numbers.scale)
    assert not verify(wrong, model.folder, mode="quick").passed


def test_vectors_without_a_length_of_one_fail_verification(models, bundles, monkeypatch):
    monkeypatch.setattr(similarity_module, "unit", lambda vectors: vectors)
    report = verify(bundles("siglip", "both"), models("siglip", "both").folder, mode="quick")
    assert {check.name.partition(",")[0] for check in report.failures()} == {"similarity"}


WRONG_ENDS = {"largest": ("clip", "end", "largest", None), "another end": ("clip", "end", "end", END + 3)}


@pytest.mark.parametrize("fault", WRONG_ENDS)
def test_a_wrong_rule_for_the_end_is_refused(models, fault):
    """The graph would be right: transformers' own module is the other reader of config.json."""
    family, name, place, end = WRONG_ENDS[fault]
    source = open_source(models(family, name).folder)
    assert compare_modules(source, source.weights()).difference <= EAGER
    wrong = replace(source, config=text(place=place, end=end)(source.config))
    with pytest.raises(ExportError, match="does not compute what transformers"):
        compare_modules(wrong, wrong.weights())


def test_texts_that_are_padded_wrong_are_refused(models, tmp_path):
    folder = models("siglip", "two heads").folder
    source = open_source(folder)
    tokens = with_padding_token(source.special_tokens(), source.config, folder)
    assert compare_texts(folder, folder, source.config, tokens) == ()
    faults = {
        "missing padding": (folder, replace(source.config, padded=False), tokens),
        "another token": (folder, source.config, replace(tokens, pad=END)),
        "another side": (changed(folder, tmp_path / "side", padding_side="right"), source.config, tokens),
    }
    for fault, (ours, config, given) in faults.items():
        with pytest.raises(ExportError, match="does not make of the text"):
            compare_texts(folder, ours, config, given)
            pytest.fail(fault)


def test_what_transformers_cannot_read_is_said(models, monkeypatch):
    folder = models("siglip", "both").folder
    source = open_source(folder)
    monkeypatch.setattr(dual_texts, "TEXTS", (5,))
    [warning] = compare_texts(folder, folder, source.config, source.special_tokens())
    assert warning.startswith("transformers cannot read the tokenizer, so its token ids were not compared")


def changed(folder, copy, file="tokenizer_config.json", **change):
    """Return a copy of a model's folder with other fields in a file."""
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    content = json.loads((copy / file).read_text())
    (copy / file).write_text(json.dumps({name: value for name, value in (content | change).items() if value != "-"}))
    return copy


def test_what_a_dual_encoder_does_not_have_is_refused(models, tmp_path):
    clip, siglip = models("clip", "end").folder, models("siglip", "both").folder
    with pytest.raises(ConfigError, match="SigLIP pads every text to all positions that the model has"):
        open_source(siglip, context_length=8)
    with pytest.raises(ConfigError, match="reads pictures, and pooling is for the states of texts"):
        open_source(clip, pooling="mean")
    assert open_source(clip, context_length=8).config.text.context_length == 8
    sizes = {**json.loads((siglip / "config.json").read_text())["text_config"], "projection_size": 5}
    with pytest.raises(ConfigError, match="with vectors of 32 numbers"):
        open_source(changed(siglip, tmp_path / "sizes", "config.json", text_config=sizes))
    other = changed(siglip, tmp_path / "padding", pad_token="-")
    with pytest.raises(ConfigError, match="tokenizer_config.json names no pad_token that its tokenizer has"):
        open_checkpoint(open_source(other))


def test_an_older_copy_of_a_half_counts(tmp_path):
    """openai/clip-vit-large-patch14 has `text_config_dict`, which transformers takes with all of its defaults."""
    model = make_dual("clip", "end", tmp_path / "model")
    content = json.loads((model.folder / "config.json").read_text())
    older = {name: value for name, value in TEXT.items() if name != "hidden_size"}
    content |= {"text_config_dict": older | {"hidden_size": 24}, "vision_config_dict": MLP | {"projection_dim": 12}}
    content["text_config"] |= {"eos_token_id": 2, "num_attention_heads": 2}
    (model.folder / "config.json").write_text(json.dumps(content))
    assert open_source(model.folder).config.text.head.end == END
    assert eager(model) <= EAGER


REAL = {
    "openai--clip-vit-base-patch32": (151_277_313, "largest", 77, False),
    "google--siglip-base-patch16-224": (203_155_970, "last", 64, True),
    "google--siglip2-base-patch16-224": (375_187_970, "last", 64, True),
    "google--siglip2-base-patch16-naflex": (375_234_050, "last", 64, True),
    "google--siglip2-so400m-patch16-naflex": (1_135_670_962, "last", 64, True),
}
"""Parameters as their hub pages state them, the pooled token, the length of texts, whether they are padded to it."""


@pytest.mark.parametrize("name", REAL)
def test_configs_of_well_known_checkpoints_are_read(name):
    """They were typed from memory, as `test_real_configs.py` says; those of NaFlex are in `test_naflex.py`."""
    content = json.loads((Path(__file__).with_name("real_dual_configs") / f"{name}.json").read_text())
    _, config = read_model_config(content)
    assert (account(config).parameters, config.text.head.place, config.context_length, config.padded) == REAL[name]
    towers = {"clip": "CLIPVisionModelWithProjection", "siglip": "SiglipVisionModel", "siglip2": "Siglip2VisionModel"}
    tower = towers[content["model_type"]]
    assert read_model_config(content | {"architectures": [tower]})[1] == config.vision


def test_a_manifest_without_a_similarity_is_damaged(bundles, tmp_path):
    folder = with_manifest(bundles("clip", "end"), tmp_path / "bundle")
    content = json.loads((folder / "edgeformer.json").read_text())
    del content["similarity"]
    (folder / "edgeformer.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match="there is no similarity"):
        load(folder)


def test_all_graphs_share_one_file_of_weights(bundles):
    files = Manifest.read(bundles("clip", "end")).files
    assert [name for name in files if name.endswith("_data")] == ["onnx/model.onnx_data"]
    assert torch.finfo(torch.float32).bits // 8 * account(Manifest.read(bundles("clip", "end")).model).parameters <= (
        files["onnx/model.onnx_data"].bytes
    )
