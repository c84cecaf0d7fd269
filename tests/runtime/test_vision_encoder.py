"""A bundle that sees, as people use it: classify, embed, the command line, check, info, bench and the server."""

import json

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from picture_samples import pixels

from edgeformer.cli.main import cli
from edgeformer.documents import schema
from edgeformer.errors import BundleError, ExportError, RequestError
from edgeformer.export import export_model
from edgeformer.runtime import Engine, Manifest, benchmark, load, load_encoder, load_vision_encoder

LABELS = {0: "cat", 1: "dog", 2: "goat"}
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    "intermediate_size": 48,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A classifier and a model without classes, with their processors."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(1)
    config = transformers.ViTConfig(**SIZES, id2label=LABELS, label2id={name: id for id, name in LABELS.items()})
    models = {
        "labels": transformers.ViTForImageClassification(config),
        "vectors": transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**SIZES, projection_dim=8)),
    }
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.save_pretrained(folder / name)
        transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def bundles(checkpoints, tmp_path_factory):
    """The bundles of both; the classifier is int8, and verified."""
    folder = tmp_path_factory.mktemp("bundles")
    export_model(checkpoints / "labels", folder / "labels", precision="int8", verify="quick")
    export_model(checkpoints / "vectors", folder / "vectors", precision="fp32", verify=None)
    return folder


def run(*arguments):
    """Return what a command printed; it must not fail."""
    result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def test_pictures_are_classified_alone_and_together(bundles, files):
    model = load(bundles / "labels")
    found = model.classify(files[0])
    assert sorted(each.label for each in found) == ["cat", "dog", "goat"]
    assert sum(each.probability for each in found) == pytest.approx(1)
    assert [each.probability for each in found] == sorted((each.probability for each in found), reverse=True)
    together = model.classify(files, batch_size=2)
    assert [each.label for each in together[0]] == [each.label for each in found]
    assert together[0][0].probability == pytest.approx(found[0].probability, abs=1e-5)
    assert model.classify(files, top_k=1) == [each[:1] for each in model.classify(files)]
    assert model.classify(files[0].read_bytes())[0] == found[0]


def test_vectors_are_projections_or_the_first_states(bundles, files):
    model = load_vision_encoder(bundles / "vectors")
    vectors = model.embed(files)
    assert vectors.shape == (3, 8)
    np.testing.assert_allclose(model.embed(files[1]), vectors[1], atol=1e-6)
    np.testing.assert_array_equal(model.run(files, ["image_embeds"])["image_embeds"], model.run(files)["image_embeds"])
    states = load(bundles / "labels").run(files)["last_hidden_state"]
    assert states.shape == (3, 17, 32)
    np.testing.assert_allclose(load(bundles / "labels").embed(files, batch_size=3), states[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model, files: model.classify(files), "this model has no classes. It embeds: embed."),
        (
            lambda model, files: model.embed([]),
            r"pictures is \[\] \(list\); it must be a picture, or a list of at least one",
        ),
        (lambda model, files: model.embed(5), r"pictures is 5 \(int\); it must be a picture"),
        (lambda model, files: model.embed([files[0], 5]), "picture 1 of the list is 5; it must be the path of a file"),
        (lambda model, files: model.embed([b"x"]), "picture 0 of the list is not a picture of PNG, JPEG"),
        (lambda model, files: model.embed("nowhere.png"), "'nowhere.png' cannot be read"),
        (lambda model, files: model.embed(files, batch_size=0), "batch_size is 0"),
        (lambda model, files: model.run(files, ["logits"]), "there is no output 'logits'; there are last_hidden_state"),
        (lambda model, files: model.run(files, []), "outputs is empty"),
        (lambda model, files: model.run(files, "logits"), r"outputs is 'logits' \(str\); it must be a list"),
        (lambda model, files: model.run(files[0]), "run takes a list of pictures"),
        (
            lambda model, files: Engine(model).submit_texts(["a"]),
            "this engine runs a model of pictures",
        ),
        (lambda model, files: Engine(model).submit_pictures(files[0]), "pictures is one picture; it must be a list"),
        (lambda model, files: Engine(model).submit_pictures([5]), "picture 0 of the list is 5"),
        (lambda model, files: Engine(model).submit("a"), "this engine runs an encoder, which generates nothing"),
    ],
)
def test_wrong_calls_are_refused_by_name(bundles, files, call, said):
    with pytest.raises(RequestError, match=said):
        call(load(bundles / "vectors"), files)


def test_an_engine_embeds_pictures_of_many_callers(bundles, files):
    model = load(bundles / "vectors")
    expected = model.embed(files)
    with Engine(model, max_rows=2) as engine:
        found = [each.result(60) for each in engine.submit_pictures(files)]
        assert engine.statistics().finished == 3
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_other_loaders_say_which_one_it_is(bundles):
    with pytest.raises(BundleError, match="for the task vision-encoder, not encoder; open it with load_vision_encoder"):
        load_encoder(bundles / "vectors")


def test_the_command_line_takes_pictures(bundles, files):
    lines = run("run", bundles / "labels", "--image", files[0]).splitlines()
    assert {line.split()[-1] for line in lines} == set(LABELS.values())
    found = json.loads(run("run", bundles / "labels", "--image", files[0], "--json"))
    assert [each["label"] for each in found] == [line.split()[-1] for line in lines]
    images = [part for file in files for part in ("--image", file)]
    vectors = json.loads(run("embed", bundles / "vectors", *images, "--json"))
    assert [each["image"] for each in vectors] == list(map(str, files))
    assert np.shape([each["vector"] for each in vectors]) == (3, 8)
    assert run("embed", bundles / "vectors", *images).splitlines()[1].split()[0] == "1.000"
    for arguments, said in (
        (("run", bundles / "labels"), "this model reads pictures, and no text"),
        (("run", bundles / "labels", "Hello"), "this model reads pictures, and no text"),
        (("run", bundles / "labels", "--image", files[0], "--chat"), "--chat: not for a bundle of this kind"),
        (("run", bundles / "vectors", "--image", files[0]), "this model makes vectors"),
        (("embed", bundles / "vectors", "Hello"), "this model reads pictures, and no text"),
        (("embed", bundles / "vectors"), "there is no picture; give at least one: --image PATH"),
        (("score", bundles / "vectors", "a", "b"), "reads pictures, and no texts"),
    ):
        result = CliRunner().invoke(cli, list(map(str, arguments)))
        assert result.exit_code != 0
        assert said in " ".join(result.output.split()), (arguments, result.output)


def test_manifest_card_info_check_and_verify_know_what_it_sees(bundles, checkpoints):
    manifest = Manifest.read(bundles / "labels")
    assert str(manifest.pictures.size) == "32 × 32"
    assert schema.to_json(manifest)["pictures"]["kind"] == "fixed_size"
    assert (bundles / "labels" / "preprocessor_config.json").is_file()
    card = (bundles / "labels" / "README.md").read_text()
    assert "edgeformer run . --image cat.jpg" in card
    assert "| pictures | 32 × 32 pixels, 17 tokens each |" in card
    assert "pixel_values = np.zeros((1, 3, 32, 32), np.float32)" in card
    told = json.loads(run("info", bundles / "vectors", "--json"))
    assert told["kind"] == "vision"
    assert told["picture"] == [32, 32]
    assert "FLOPs per picture" in run("info", bundles / "labels")
    checked = run("check", bundles / "labels")
    assert "tokenizer.json" not in checked
    assert "verified" in run("verify", bundles / "labels", "--against", checkpoints / "labels")


def test_parameters_are_counted(checkpoints):
    for name, kind in (
        ("labels", transformers.ViTForImageClassification), ("vectors", transformers.CLIPVisionModelWithProjection),
    ):  # fmt: skip
        told = json.loads(run("info", checkpoints / name, "--json"))
        assert told["parameters"] == sum(each.numel() for each in kind.from_pretrained(checkpoints / name).parameters())


def test_it_is_timed_by_pictures(bundles):
    result = benchmark(bundles / "labels", batch_sizes=[2], rounds=1)
    assert [each.tokens for each in result.workloads] == [17]
    with pytest.raises(RequestError, match="each picture is 17 tokens"):
        benchmark(bundles / "labels", prompts=[5])


def test_what_is_for_texts_is_refused_at_export(checkpoints, tmp_path):
    with pytest.raises(ExportError, match="the model reads pictures, and calibration is by text"):
        export_model(checkpoints / "labels", tmp_path / "bundle", calibration=[[1, 2, 3]], precision="int8")


def test_a_manifest_without_a_processor_is_damaged(bundles, tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    for path in (bundles / "vectors").rglob("*"):
        if path.is_file():
            (folder / path.relative_to(bundles / "vectors")).parent.mkdir(exist_ok=True)
            (folder / path.relative_to(bundles / "vectors")).write_bytes(path.read_bytes())
    content = json.loads((folder / "edgeformer.json").read_text())
    del content["pictures"]
    (folder / "edgeformer.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match="there is no processor of pictures"):
        load(folder)


def test_arrays_need_no_pillow(bundles, monkeypatch):
    model, array = load(bundles / "vectors"), pixels(50, 60)
    expected = model.embed(array)
    monkeypatch.setattr("edgeformer.runtime.media.pictures.processors.processor.find_spec", lambda name: None)
    np.testing.assert_array_equal(model.embed(array), expected)
