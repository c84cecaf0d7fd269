"""A bundle of texts and pictures, as people use it: embed, classify, rank, the command line, check, info, bench."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.errors import BundleError, ParityError, RequestError
from edgeformer.export import export_model
from edgeformer.runtime import Engine, Manifest, benchmark, load, load_dual_encoder, load_vision_encoder, optimize

sys.path.insert(0, str(Path(__file__).parent.parent / "families"))
from dual_rows import make_dual


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """One of each family."""
    folder = tmp_path_factory.mktemp("checkpoints")
    names = {"clip": "end", "siglip": "both", "siglip2": "both"}
    return {family: make_dual(family, name, folder / family).folder for family, name in names.items()}


@pytest.fixture(scope="module")
def bundles(checkpoints, tmp_path_factory):
    """Their bundles, which the tests of families verify."""
    folder = tmp_path_factory.mktemp("bundles")
    for family, checkpoint in checkpoints.items():
        export_model(checkpoint, folder / family, precision="fp32", verify=None)
    return folder


def run(*arguments):
    """Return what a command printed; it must not fail."""
    result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def test_vectors_have_length_one_and_batches_change_nothing(bundles, files):
    model = load_dual_encoder(bundles / "clip")
    texts, pictures = model.embed(["a cat", "two dogs at the sea"]), model.embed(images=files)
    assert texts.shape == (2, 12)
    assert pictures.shape == (3, 12)
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([texts, pictures]), axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(model.embed("a cat"), texts[0], atol=1e-6)
    np.testing.assert_allclose(model.embed(images=files[1]), pictures[1], atol=1e-6)
    np.testing.assert_allclose(model.embed(["a cat", "two dogs at the sea"], batch_size=1), texts, atol=1e-6)
    similarity, numbers = model.similarity(files, ["a cat", "two dogs at the sea"]), model.manifest.similarity
    np.testing.assert_allclose(similarity, numbers.scale * pictures @ texts.T + numbers.bias, rtol=1e-4, atol=1e-4)


def test_labels_have_the_probabilities_of_the_family(bundles, files):
    clip, siglip = load(bundles / "clip"), load(bundles / "siglip")
    found = clip.classify(files[0], ["cat", "dog", "red"])
    assert sum(each.probability for each in found) == pytest.approx(1)
    assert [each.probability for each in found] == sorted((each.probability for each in found), reverse=True)
    [first] = clip.classify(files, ["cat", "dog", "red"], top_k=1)[0]
    assert (first.label, first.probability) == (found[0].label, pytest.approx(found[0].probability, abs=1e-5))
    assert [each.probability for each in clip.classify(files[0], ["cat"])] == [1.0]
    logits = siglip.similarity(files[0], ["This is a photo of cat.", "This is a photo of dog."])[0]
    alone = {each.label: each.probability for each in siglip.classify(files[0], ["cat", "dog"])}
    assert list(alone.values()) == sorted(alone.values(), reverse=True)
    expected = dict(zip(["cat", "dog"], 1 / (1 + np.exp(-logits)), strict=True))
    assert alone == pytest.approx(expected, rel=1e-5)
    plain = siglip.classify(files[0], ["cat"], template="{}")[0].probability
    assert plain == pytest.approx(1 / (1 + np.exp(-siglip.similarity(files[0], "cat")[0, 0])), rel=1e-5)


def test_pictures_are_ranked_by_a_text_or_a_picture(bundles, files):
    model = load(bundles / "clip")
    scores = model.embed(images=files) @ model.embed("a cat")
    found = model.rank("a cat", files)
    assert [each.index for each in found] == np.argsort(-scores).tolist()
    assert [each.score for each in found] == pytest.approx(sorted(scores.tolist(), reverse=True), abs=1e-6)
    assert model.rank("a cat", files, top_k=1) == found[:1]
    like = model.rank(files[2], files)
    assert (like[0].index, like[0].score) == (2, pytest.approx(1))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model, files: model.embed(), "embed takes texts, or pictures"),
        (lambda model, files: model.embed("a", images=files), "embed takes texts, or pictures"),
        (lambda model, files: model.embed([]), r"texts is \[\] \(list\); it must be a list of at least one text"),
        (lambda model, files: model.embed(["a", 5]), "text 1 of the list"),
        (lambda model, files: model.embed(5), r"texts is 5 \(int\)"),
        (lambda model, files: model.embed(images=[]), r"pictures is \[\]"),
        (lambda model, files: model.embed(images=5), r"pictures is 5"),
        (lambda model, files: model.embed("a", batch_size=0), "batch_size is 0"),
        (lambda model, files: model.classify(files, "cat"), "labels is 'cat'"),
        (lambda model, files: model.classify(files, []), "labels is"),
        (
            lambda model, files: model.classify(files, ["cat"], template="cat"),
            r"template is \'cat\' \(str\); it must have",
        ),
        (lambda model, files: model.classify(files, ["cat"], template=5), "template is 5"),
        (lambda model, files: model.classify(files, ["cat"], top_k=0), "top_k is 0"),
        (lambda model, files: model.rank("a", files[0]), "images is one picture"),
        (lambda model, files: model.rank(["a"], files), r"query is \['a'\] \(list\); it must be one text"),
        (lambda model, files: Engine(model).embed("a"), "this engine runs a model of pictures. Use submit_pictures"),
        (lambda model, files: Engine(model).submit_texts([5]), "text"),
    ],
)
def test_wrong_calls_are_refused_by_name(bundles, files, call, said):
    with pytest.raises(RequestError, match=said):
        call(load(bundles / "clip"), files)


def test_an_engine_embeds_texts_and_pictures(bundles, files):
    texts = ["a cat", "two dogs at the sea"]
    for family in ("clip", "siglip", "siglip2"):
        model = load(bundles / family)
        expected = [*model.embed(texts), *model.embed(images=files)]
        with Engine(model) as engine:
            futures = [*engine.submit_texts(texts), *engine.submit_pictures(files)]
            np.testing.assert_allclose([each.result(60) for each in futures], expected, atol=1e-6)


def test_other_loaders_say_which_one_it_is(bundles):
    with pytest.raises(BundleError, match="for the task dual-encoder, not vision-encoder; open it with load_dual_enco"):
        load_vision_encoder(bundles / "clip")


def test_the_command_line_takes_texts_and_pictures(bundles, files):
    labels = ("--label", "cat", "--label", "dog")
    lines = run("run", bundles / "clip", "--image", files[0], *labels).splitlines()
    assert {line.split()[-1] for line in lines} == {"cat", "dog"}
    found = json.loads(run("run", bundles / "clip", "--image", files[0], *labels, "--json"))
    assert [each["label"] for each in found] == [line.split()[-1] for line in lines]
    images = [part for file in files for part in ("--image", file)]
    vectors = json.loads(run("embed", bundles / "clip", "a cat", *images, "--json"))
    assert np.shape([each["vector"] for each in vectors]) == (4, 12)
    assert run("embed", bundles / "clip", "a cat", *images).splitlines()[1].split()[0] == "1.000"
    ranked = json.loads(run("rank", bundles / "siglip", "a cat", *images, "--top-k", 2, "--json"))
    assert [each["image"] for each in ranked] == [str(files[each["index"]]) for each in ranked]
    assert len(run("rank", bundles / "siglip", "a cat", *images).splitlines()) == 4
    for arguments, said in (
        (("run", bundles / "clip", "--image", files[0]), "this model compares a picture with labels"),
        (("run", bundles / "clip", *labels), "this model compares a picture with labels"),
        (("run", bundles / "clip", "Hello", "--image", files[0], *labels), "this model compares a picture with labels"),
        (("run", bundles / "clip", "--image", files[0], *labels, "--chat"), "--chat: not for a bundle of this kind"),
        (("embed", bundles / "clip", "a", "--query"), "--query and --form: not for a bundle of this kind"),
        (("rank", bundles / "clip", "a cat", "a dog"), "this model ranks pictures by a text"),
        (("score", bundles / "clip", "a", "b"), "reads pictures, and no texts"),
    ):
        result = CliRunner().invoke(cli, list(map(str, arguments)))
        assert result.exit_code != 0
        assert said in " ".join(result.output.split()), (arguments, result.output)


def test_manifest_card_info_check_and_bench_know_it(bundles):
    folder = bundles / "clip"
    manifest = Manifest.read(folder)
    assert {name: graph.file for name, graph in manifest.graphs.items()} == {
        "text": "onnx/text_model.onnx", "model": "onnx/vision_model.onnx", "joined": "onnx/model.onnx",
    }  # fmt: skip
    assert (folder / "preprocessor_config.json").is_file()
    card = (folder / "README.md").read_text()
    assert "edgeformer run . --image cat.jpg --label cat --label dog" in card
    assert "| pictures | 32 × 32 pixels, 17 tokens each |" in card
    assert 'pipeline("zero-shot-image-classification", ".")' in card
    told = json.loads(run("info", folder, "--json"))
    assert (told["kind"], told["picture"], told["text"]["vocab_size"]) == ("dual", [32, 32], 60)
    assert "for other clients: joined" in " ".join(run("info", folder).split())
    checked = run("check", folder)
    assert re.search(r"^edgeformer +loads ", checked, re.MULTILINE)
    assert json.loads((folder / "config.json").read_text())["transformers.js_config"]["use_external_data_format"] == {
        "model.onnx": 1
    }
    assert [each.tokens for each in benchmark(folder, batch_sizes=[2], rounds=1).workloads] == [17]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_it_is_prepacked_or_nothing_is_kept(family, checkpoints, files, tmp_path):
    """onnxruntime sums some products in another order where weights are packed: the last bits of CLIP differ."""
    folder = export_model(checkpoints[family], tmp_path / "bundle", precision="fp32", verify=None).path
    expected = load(folder).similarity(files, ["a cat"])
    before = sorted(folder.rglob("*"))
    try:
        optimize(folder)
    except ParityError:
        assert sorted(folder.rglob("*")) == before
    np.testing.assert_allclose(load(folder).similarity(files, ["a cat"]), expected, rtol=1e-5)
