"""From pictures to text: random models of transformers' VisionEncoderDecoderModel, in eager PyTorch and as bundles.

The oracle is transformers' module over the same checkpoint in float64, with the pixel values of its own processor.
"""

import functools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from picture_to_text_rows import MODELS, save
from PIL import Image
from slow_rows import slow_unless

from edgeformer.batch import BatchOptions
from edgeformer.batch.media import MEDIA, medium_of, with_media
from edgeformer.batch.verbs import Runner, choose_verb
from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.config import LearnedPositions
from edgeformer.errors import ConfigError, ExportError, RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures
from edgeformer.export.reference.reference import CastWeights
from edgeformer.families import read_model_config
from edgeformer.runtime import load
from edgeformer.transformers_backend.float64 import computing_in_float64

PICTURES = [np.random.default_rng(index).integers(0, 256, (30 + 30 * index, 50, 3), np.uint8) for index in range(3)]
OPTIONS = {"max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that returns a model by its name, each made once."""

    @functools.cache
    def of(name):
        folder = tmp_path_factory.mktemp("trocr")
        return SimpleNamespace(folder=folder, module=save(name, folder))

    return of


@pytest.fixture(scope="module")
def bundles(models, tmp_path_factory):
    """Return a function that returns the folder of a model's bundle, each made once."""

    @functools.cache
    def of(name, precision="fp32"):
        folder = tmp_path_factory.mktemp("bundles") / f"{name}-{precision}"
        export_model(models(name).folder, folder, precision=precision)
        return folder

    return of


def pixels_of(model, pictures):
    processor = transformers.AutoImageProcessor.from_pretrained(model.folder, backend="pil")
    return processor(images=pictures, return_tensors="pt")["pixel_values"].double()


def error(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("name", MODELS)
def test_module_and_pixels_are_those_of_transformers(models, name):
    source = open_source(models(name).folder)
    compared = compare_modules(source, source.weights())
    assert compared.reason is None and compared.difference < 1e-12
    assert compare_pictures(source.folder, source.pictures) == ()


@pytest.mark.parametrize(
    ("name", "precision"),
    slow_unless({("vit", "fp32")}, [(name, precision) for name in MODELS for precision in ("fp32", "fp16")]),
)
def test_a_bundle_writes_what_transformers_does(models, bundles, tmp_path, name, precision):
    model, runtime = models(name), load(bundles(name, precision), "cpu", 1)
    pixels, tokens = pixels_of(model, PICTURES), [2, 5, 9, 300, 17]
    with torch.no_grad(), computing_in_float64():
        expected = model.module(pixel_values=pixels, decoder_input_ids=torch.tensor([tokens] * 3)).logits.numpy()
    for picture, logits in zip(PICTURES, expected, strict=True):
        assert error(runtime.forward(picture, tokens[1:]), logits) <= (1e-5 if precision == "fp32" else 5e-3)
    if precision != "fp32":
        return
    with torch.no_grad():
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
        written, beams = (
            [each[1:].tolist() for each in model.module.generate(pixels, num_beams=count, **options)]
            for count in (1, 3)
        )
    assert [each.token_ids for each in runtime.generate(PICTURES, **OPTIONS)] == written
    assert runtime.stream(PICTURES[1], **OPTIONS).finish().token_ids == written[1]
    assert [each.token_ids for each in runtime.generate(PICTURES, num_beams=3, **OPTIONS)] == beams
    Image.fromarray(PICTURES[2]).save(tmp_path / "line.png")
    for picture in (tmp_path / "line.png", str(tmp_path / "line.png"), (tmp_path / "line.png").read_bytes()):
        assert runtime.generate(picture, **OPTIONS).token_ids == written[2]
    ran = CliRunner().invoke(
        cli, ["run", str(bundles(name)), "--image", str(tmp_path / "line.png"), "--max-new-tokens", "8", "--json"]
    )
    ended = written[2].index(2) + 1 if 2 in written[2] else len(written[2])
    assert ran.exit_code == 0 and json.loads(ran.stdout)["token_ids"][: ended - 1] == written[2][: ended - 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"ops": "standard"}, {"ops": "portable"}, {"precision": "int8"}, {"deployment": "web"}, {"deployment": "mobile"}],
)
def test_every_kind_of_bundle_reads_a_picture(models, tmp_path, options):
    export_model(models("vit").folder, tmp_path / "bundle", **options)
    assert len(load(tmp_path / "bundle", "cpu", 1).generate(PICTURES[0], **OPTIONS).token_ids) == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.generate("/no/such/file"), "cannot be read"),
        (lambda model: model.generate(5), "must be the path of a file"),
        (lambda model: model.translate("a text"), "reads pictures, and translates no text"),
        (lambda model: model.transcribe("a.wav"), "takes pictures, not speech"),
    ],
)
def test_what_is_no_picture_is_refused(bundles, call, message):
    with pytest.raises(RequestError, match=message):
        call(load(bundles("vit"), "cpu", 1))


def test_a_prompt_is_refused_in_a_terminal(bundles):
    for options in (["a prompt", "--image", "a.png"], []):
        ran = CliRunner().invoke(cli, ["run", str(bundles("vit")), *options])
        assert ran.exit_code != 0 and "writes the text of a picture" in ran.output


def of_decoder(**changes):
    return lambda config: replace(config, decoder=replace(config.decoder, **changes))


FAULTS = {
    ("vit", "positions from 0 on"): of_decoder(position_embedding=LearnedPositions(rows=42)),
    ("vit", "no norm of embeddings"): of_decoder(embedding_norm=None),
    ("vit", "no norm behind the encoder"): lambda config: replace(
        config, encoder=replace(config.encoder, final_norm=None)
    ),
    ("deit", "embeddings that are not scaled"): of_decoder(embedding_scale=1.0),
    ("deit", "sinusoids from 0 on"): lambda config: of_decoder(
        position_embedding=replace(config.decoder.position_embedding, offset=0)
    )(config),
}


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_an_export_refuses_a_model_that_is_another(models, name, fault):
    source = open_source(models(name).folder)
    changed = replace(source, config=FAULTS[name, fault](source.config))
    with pytest.raises(ExportError, match="does not compute what"):
        compare_modules(changed, source.weights())


@pytest.mark.parametrize("planted", [False, True])
def test_verification_refuses_other_keys_of_the_picture(models, bundles, monkeypatch, planted):
    plain = CastWeights.__getitem__

    def rolled(self, key):
        value = plain(self, key)
        return value.roll(1, 0) if key == "decoder.blocks.0.cross_attention.key.weight" else value

    bundle = bundles("vit")
    if planted:
        monkeypatch.setattr(CastWeights, "__getitem__", rolled)
    assert verify(bundle, models("vit").folder, mode="quick").passed != planted


@pytest.mark.parametrize(
    ("half", "fields", "message"),
    [
        ("encoder", {"model_type": "swin"}, "encoder of model_type 'swin'; supported before a decoder: deit, vit"),
        ("decoder", {"model_type": "gpt2"}, "decoder of model_type 'gpt2'; supported behind pictures: trocr"),
        ("decoder", {"cross_attention_hidden_size": None}, "enc_to_dec_proj"),
        ("decoder", {"trick": 3}, "trick = 3"),
        ("encoder", {"trick": 3}, "trick = 3"),
    ],
)
def test_other_halves_are_refused(models, half, fields, message):
    data = json.loads((models("vit").folder / "config.json").read_text())
    with pytest.raises(ConfigError, match=message):
        read_model_config(data | {half: data[half] | fields})


def test_a_job_transcribes_pictures(bundles, tmp_path):
    model = load(bundles("vit"), "cpu", 1)
    assert choose_verb(model.manifest, None) == "transcribe" and medium_of(model.manifest) is MEDIA["picture"]
    with pytest.raises(RequestError, match="cannot translate; it can transcribe"):
        choose_verb(model.manifest, "translate")
    Image.fromarray(PICTURES[0]).save(tmp_path / "a.png")
    places = [(name, {}, None, "transcribe", f"{tmp_path}/rows.jsonl", MEDIA["picture"]) for name in ("a.png", "b.png")]
    rows = [with_media(*each) for each in places]
    found = Runner(model, "transcribe", BatchOptions(generation=OPTIONS)).run(rows, 0)
    assert found[0].output == model.generate(PICTURES[0], **OPTIONS).text
    assert "the picture" in found[1].error and "b.png cannot be read" in found[1].error
