"""Encoders of pictures and text: random ModernVBERTs of transformers' own classes, in eager PyTorch and as bundles.

The oracle is transformers' module over the same checkpoint in float64, with the pixel values and the ids of its own
processor. Error: max |Δ| / max |output|. The models are in `picture_encoder_rows.py`.
"""

import functools
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from picture_encoder_rows import MASK, MODELS, save
from PIL import Image
from slow_rows import slow_unless
from test_picture_text import PICTURES, fault
from tower_models import error

from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.client_files.model_card import model_card
from edgeformer.errors import BundleError, ConfigError, ExportError, RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.calibrate.forward_hooks import inputs_of
from edgeformer.export.calibrate.text import read_calibration
from edgeformer.export.importers.checkpoint import open_checkpoint
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.importers.pictures import placeholders
from edgeformer.export.importers.pictures.library_processor import library_processor
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures
from edgeformer.export.parity.trials.pictures import picture_encoder as trial
from edgeformer.export.reference.reference import Reference
from edgeformer.families import read_model_config
from edgeformer.families.picture_text import with_tower
from edgeformer.manifest.accounting import account
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import QuantizationOverrides
from edgeformer.models.pictures import projectors
from edgeformer.runtime import load, load_encoder, load_picture_encoder
from edgeformer.runtime.media.pictures.processors import new_processor
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.media.pictures.processors.tiles import Tiles
from edgeformer.transformers_backend.float64 import computing_in_float64

LIMIT = 1e-5
VERIFIED = ("words",)
"""Models whose exports are verified by default; by night, those of all others are."""
TEXTS = [("What is left?", 0), ("<image>", 1), ("<image><image> What is left of <image>", 3)]
SIZES = [(1, 1), (7, 300), (28, 28), (30, 90), (97, 61), (3, 2), (84, 84), (200, 31)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that returns a model by name, each made once."""

    @functools.cache
    def of(name):
        folder = tmp_path_factory.mktemp("modernvbert")
        return SimpleNamespace(folder=folder, module=save(name, folder), processor=library_processor(folder))

    return of


@pytest.fixture(scope="module")
def bundles(models, tmp_path_factory):
    """Return a function that returns the folder of a model's bundle, each made once."""

    @functools.cache
    def of(name):
        folder = tmp_path_factory.mktemp("bundles") / name.replace(" ", "-")
        export_model(models(name).folder, folder, verify="quick" if name in VERIFIED else None)
        return folder

    return of


def theirs(model, texts, pictures):
    """Return what transformers' processor makes of texts, and what its module in float64 makes of that."""
    shown = {"images": pictures} if any(map(len, pictures)) else {}
    encoded = model.processor(text=texts, padding=True, return_tensors="pt", **shown)
    encoded = {name: value.double() if value.is_floating_point() else value for name, value in encoded.items()}
    with torch.no_grad(), computing_in_float64():
        return encoded, model.module(**encoded)


def expected_of(outputs, mask, per_token):
    """Return the output of the head, or the states, of each text without padding."""
    found = outputs.last_hidden_state if getattr(outputs, "logits", None) is None else outputs.logits
    rows = zip(found.numpy(), mask.numpy(), strict=True)
    return [row[: int(seen.sum())] if per_token else row for row, seen in rows]


def test_a_text_config_leaves_out_defaults_of_modernbert(models, tmp_path):
    """transformers may write of a config inside another one what differs from its class alone."""
    folder = shutil.copytree(models("words").folder, tmp_path / "model")
    data = json.loads((folder / "config.json").read_text())
    plain = transformers.ModernBertConfig().to_dict()
    text = {
        name: value for name, value in data["text_config"].items() if name == "model_type" or plain.get(name) != value
    }
    assert len(text) < len(data["text_config"]) // 2
    (folder / "config.json").write_text(json.dumps(data | {"text_config": text}))
    assert open_source(folder).config == open_source(models("words").folder).config


@pytest.mark.parametrize("name", MODELS)
def test_module_pixels_and_ids_are_those_of_transformers(models, name):
    source = open_source(models(name).folder)
    compared = compare_modules(source, source.weights())
    assert compared.reason is None and compared.difference < 1e-12
    assert compare_pictures(source.folder, source.pictures) == ()
    placeholder = placeholders.read_placeholder(source, source.config, source.folder)
    assert placeholders.compare_prompts(source, placeholder, source.folder) == ()


@pytest.mark.parametrize("name", ["words", "tied words", "first token"])
def test_pixels_are_those_of_transformers_bit_for_bit(models, name):
    model, processor = models(name), new_processor(open_source(models(name).folder).pictures)
    for index, size in enumerate(SIZES):
        pixels = np.random.default_rng(index).integers(0, 256, (*size, 3), np.uint8)
        expected = model.processor.image_processor([[Image.fromarray(pixels)]], return_tensors="np")["pixel_values"]
        assert np.array_equal(processor.values(pixels), expected[0])


@pytest.mark.parametrize("name", MODELS)
def test_a_bundle_computes_what_transformers_does(models, bundles, name):
    model, runtime = models(name), load_picture_encoder(bundles(name), "cpu", 1)
    head = runtime.config.head_outputs
    output, per_token = (head[0].name, head[0].per_token) if head else ("last_hidden_state", True)
    alone = []
    for text, count in TEXTS:
        encoded, outputs = theirs(model, [text], [PICTURES[:count]])
        [expected] = expected_of(outputs, encoded["attention_mask"], per_token)
        assert runtime.see(text, PICTURES[:count]) == encoded["input_ids"][0].tolist()
        found = runtime.run([text], [output], images=[PICTURES[:count]])[output][0]
        assert error(found, expected) <= LIMIT
        alone.append(found)
    texts, pictures = [text for text, _ in TEXTS[1:]], [PICTURES[:count] for _, count in TEXTS[1:]]
    encoded, outputs = theirs(model, texts, pictures)  # pads the shorter one
    together = runtime.run(texts, [output], images=pictures)[output]
    for row, expected in enumerate(expected_of(outputs, encoded["attention_mask"], per_token)):
        found = together[row][: len(expected)] if per_token else together[row]
        assert error(found, expected) <= LIMIT
    mixed = runtime.run([text for text, _ in TEXTS], [output], images=[PICTURES[:count] for _, count in TEXTS])[output]
    for row, found in enumerate(alone):
        assert error(mixed[row][: len(found)] if per_token else mixed[row], found) <= LIMIT
    assert len(runtime.features) == 3


def test_another_order_of_pictures_is_seen(models, bundles):
    """The comparison with transformers would see it: vectors of the same pictures in another order are far apart."""
    runtime, text = load(bundles("words"), "cpu", 1), TEXTS[2][0]
    one, other = (runtime.embed(text, images=each) for each in (PICTURES, PICTURES[::-1]))
    assert error(one, other) > 100 * LIMIT


@pytest.mark.parametrize("name", slow_unless(VERIFIED, MODELS))
def test_a_bundle_is_verified_as_its_export_was(models, bundles, name):
    report = verify(bundles(name), models(name).folder, mode="quick")
    assert report.passed
    said = {check.name.partition(":")[0] for check in report.checks}
    assert {"pictures, tower", "pictures, embeddings", "pictures, batch of 2, last_hidden_state"} <= said


def test_words_behind_pictures_are_filled(models, bundles):
    model, runtime = models("words"), load(bundles("words"), "cpu", 1)
    text = f"<image>This is a {MASK}."
    encoded, outputs = theirs(model, [text], [PICTURES[:1]])
    place = encoded["input_ids"][0].tolist().index(runtime.tokenizer.backend.token_to_id(MASK))
    chances = outputs.logits[0, place].softmax(-1)
    found = runtime.fill_mask(text, images=PICTURES[:1], top_k=3)
    assert [each.token_id for each in found] == chances.topk(3).indices.tolist()
    assert [each.probability for each in found] == pytest.approx(chances.topk(3).values.tolist(), rel=1e-4)
    assert runtime.fill_mask(text, images=PICTURES[0], top_k=3) == found
    assert runtime.fill_mask(text, images=PICTURES[1:2], top_k=3) != found


def by_label(classes):
    return {each.label: each.probability for each in classes}


def test_pictures_are_classified(models, bundles):
    runtime = load(bundles("labels"), "cpu", 1)
    _, outputs = theirs(models("labels"), ["<image>"], [PICTURES[:1]])
    chances = dict(zip(("map", "form", "table"), outputs.logits[0].softmax(-1).tolist(), strict=True))
    found = runtime.classify("<image>", images=PICTURES[:1])
    assert by_label(found) == pytest.approx(chances, rel=1e-4)
    both = runtime.classify(["<image>", "no picture"], images=[PICTURES[:1], []])
    for together, alone in zip(both, (found, runtime.classify("no picture")), strict=True):
        assert by_label(together) == pytest.approx(by_label(alone), rel=1e-4)
    tokens = load(bundles("token labels"), "cpu", 1)
    assert len(tokens.classify("<image>a", images=PICTURES[:1])) == len(tokens.see("<image>a", PICTURES[:1]))


def test_vectors_are_means_of_states(models, bundles):
    runtime = load(bundles("states"), "cpu", 1)
    texts, pictures = [text for text, _ in TEXTS], [PICTURES[:count] for _, count in TEXTS]
    vectors = runtime.embed(texts, images=pictures, batch_size=2)
    for vector, text, shown in zip(vectors, texts, pictures, strict=True):
        _, outputs = theirs(models("states"), [text], [shown])
        assert error(vector, outputs.last_hidden_state[0].mean(0).numpy()) <= LIMIT
    assert error(runtime.embed(texts[1], images=PICTURES[0]), vectors[1]) <= LIMIT
    ids = runtime.see(texts[1], PICTURES[:1])
    assert error(runtime.embed(ids), vectors[1]) <= LIMIT
    assert runtime.embed(texts[1], images=PICTURES[:1], dimensions=7).shape == (7,)
    assert error(runtime.embed(texts[0]), vectors[0]) <= LIMIT
    prompted = runtime.embed(["<image>"], images=[PICTURES[:1]], prompt="a page: ")
    assert error(prompted, runtime.embed(["a page: <image>"], images=[PICTURES[:1]])) <= LIMIT


def test_a_picture_is_read_once(bundles):
    runtime = load(bundles("states"), "cpu", 1)
    with patch.object(Tiles, "values", autospec=True, side_effect=Tiles.values) as values:
        for text in ("<image> one", "<image> two"):
            runtime.embed(text, images=PICTURES[:1])
    assert values.call_count == 1


def test_memory_holds_the_pixels_of_one_text(bundles):
    runtime, events, values = load(bundles("states"), "cpu", 1), [], Tiles.values

    def noted(name, function):
        return lambda *given: events.append(name) or function(*given)

    with (
        patch.object(Tiles, "values", noted("pixels", values)),
        patch.object(runtime, "_run_tower", noted("tower", runtime._run_tower)),
    ):
        runtime.embed(["<image>"] * 3, images=[[each] for each in PICTURES], batch_size=2)
    assert events.count("pixels") == 3 and events[-1] == "tower"
    assert all(pair != ("pixels", "pixels") for pair in pairwise(events))


def test_states_can_be_pooled_in_the_graph(models, tmp_path):
    export_model(models("words").folder, tmp_path / "vectors", pooling="mean", normalize=True)
    runtime = load(tmp_path / "vectors", "cpu", 1)
    assert runtime.forms == ["dense"] and runtime.manifest.task == "image-text-encoder"
    [vector] = runtime.embed(["<image> a"], images=[PICTURES[:1]])
    _, outputs = theirs(models("words"), ["<image> a"], [PICTURES[:1]])
    with torch.no_grad(), computing_in_float64():
        encoded, _ = theirs(models("words"), ["<image> a"], [PICTURES[:1]])
        states = models("words").module.model(**encoded).last_hidden_state[0].mean(0)
    assert error(vector, (states / states.norm()).numpy()) <= LIMIT
    [found] = runtime.embeddings(["<image> a"], images=[PICTURES[:1]])
    assert error(found.dense, vector) <= LIMIT
    assert outputs.logits.shape[-1] == runtime.manifest.vocab_size


def test_pictures_calibrate_an_encoder(models, tmp_path):
    (tmp_path / "pages").mkdir()
    for index, text in enumerate(("What is left of it?", "A page")):
        Image.fromarray(PICTURES[index]).save(tmp_path / "pages" / f"{index}.png")
        (tmp_path / "pages" / f"{index}.txt").write_text(text)
    options = {"precision": "int4", "quantization": QuantizationOverrides(block=16)}
    result = export_model(models("tied words").folder, tmp_path / "int4", calibration=tmp_path / "pages", **options)
    assert result.report.passed and result.manifest.plan.quantization.calibration.pictures == 2
    assert any(each.quantized is not None for each in result.manifest.weights.values())
    opened = open_checkpoint(open_source(models("tied words").folder))
    origin = opened.origin
    text = read_calibration(tmp_path / "pages", origin.folder, opened.model_spec, origin.pictures, origin.placeholder)
    reference = Reference(opened.model_spec, opened.weights, torch.float64)
    inputs = inputs_of(reference, text)
    with reference.loaded():
        states = inputs.run(reference, opened.model_spec)
    runtime = load(tmp_path / "int4", "cpu", 1)
    for row, (mark, picture) in enumerate(zip(text.texts, PICTURES, strict=False)):
        assert mark.tolist() == runtime.see(["<image>What is left of it?", "<image>A page"][row], [picture])
        ids = torch.from_numpy(mark)[None]
        with torch.no_grad(), computing_in_float64():
            pixels = models("tied words").processor.image_processor([[Image.fromarray(picture)]], return_tensors="pt")
            expected = models("tied words").module.model(
                input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels["pixel_values"].double()
            )
        assert error(states[row][: len(mark)].numpy(), expected.last_hidden_state[0].numpy()) <= 1e-12


@pytest.mark.parametrize("name", ["words", "labels"])
def test_the_text_model_alone_is_a_modernbert(models, bundles, tmp_path, name):
    result = export_model(models(name).folder, tmp_path / "text", text_only=True)
    assert result.report.passed and result.manifest.task == "encoder"
    whole = result.manifest.provenance.text_model_of
    assert whole.model_type == "modernvbert" and {each.modality for each in whole.left_out} == {"vision", "projection"}
    alone, seeing = (load(folder, "cpu", 1) for folder in (tmp_path / "text", bundles(name)))
    output = alone.config.head_outputs[0].name
    for text in ("What is left?", "a"):
        assert np.array_equal(alone.run([text], [output])[output], seeing.run([text], [output])[output])
    config = json.loads((tmp_path / "text" / "config.json").read_text())
    kind = transformers.CONFIG_MAPPING["modernbert"].from_dict(config)
    assert kind.architectures == [f"ModernBert{MODELS[name].kind}"]
    if name == "labels":
        assert kind.classifier_pooling == "mean" and list(kind.id2label.values()) == ["map", "form", "table"]


PIXEL_FAULTS = {
    "height and width swapped": fault(Tiles, "values", lambda values: values.swapaxes(2, 3)),
    "order of tiles": fault(Tiles, "values", lambda values: values[[1, 0, *range(2, len(values))]]),
    "no whole picture": fault(Tiles, "values", lambda values: values[:-1]),
    "blue for red": fault(Processor, "normalized", lambda values: values[::-1]),
}


@pytest.mark.parametrize("name", PIXEL_FAULTS)
def test_an_export_refuses_pixels_that_are_others(models, name):
    source = open_source(models("tied words").folder)
    with PIXEL_FAULTS[name], pytest.raises(ExportError, match="does not make of a picture"):
        compare_pictures(source.folder, source.pictures)


def test_an_export_refuses_mean_for_deviation(models):
    source = open_source(models("tied words").folder)
    swapped = replace(source.pictures, mean=source.pictures.std, std=source.pictures.mean)
    with pytest.raises(ExportError, match="does not make of a picture"):
        compare_pictures(source.folder, swapped)


def test_an_export_refuses_ids_of_other_tiles(models):
    source = open_source(models("words").folder)
    placeholder = placeholders.read_placeholder(source, source.config, source.folder)
    wrong = replace(placeholder, names=tuple(zip(*placeholder.names, strict=True)))
    with pytest.raises(ExportError, match="prompt with pictures"):
        placeholders.compare_prompts(source, wrong, source.folder)


def by_columns(squares):
    """Return a function that puts the states of a square side by side column by column."""

    def changed(states, factor):
        count, rows, _ = squares(states, factor).shape
        found = squares(states, factor).view(count, rows, factor, factor, -1)
        return found.transpose(2, 3).reshape(count, rows, -1)

    return changed


def test_an_export_refuses_another_merge_order(models):
    source = open_source(models("words").folder)
    wrong = by_columns(projectors.squares)
    with patch.object(projectors, "squares", wrong), pytest.raises(ExportError, match="does not compute what"):
        compare_modules(source, source.weights())


MODULE_FAULTS = {
    "another layer of the tower": lambda config: replace(config, feature_layers=(1,)),
    "a window of one token less": lambda config: replace(
        config,
        blocks=tuple(
            block if block.attention.window is None
            else replace(block, attention=replace(block.attention, window=block.attention.window - 1))
            for block in config.blocks
        ),
    ),
    "the first token for the mean": lambda config: replace(config, head=replace(config.head, pooling="first")),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULE_FAULTS)
def test_an_export_refuses_a_model_that_is_another(models, name):
    source = open_source(models("labels").folder)
    wrong = replace(source, config=MODULE_FAULTS[name](source.config))
    with pytest.raises(ExportError, match="does not compute what"):
        compare_modules(wrong, source.weights())


def placed_otherwise(change):
    """Return a context in which the runtime places what is changed of the states of each text."""
    place = trial.placed_embeddings
    return patch.object(
        trial, "placed_embeddings", lambda graphs, texts, states, padding: place(graphs, texts, change(states), padding)
    )


RUNTIME_FAULTS = {
    "pictures in another order": lambda states: [each[::-1] for each in states],
    "states of a picture in another order": lambda states: [[one[::-1] for one in each] for each in states],
    "states of a picture one place late": lambda states: [[np.roll(one, 1, 0) for one in each] for each in states],
}


@pytest.mark.parametrize("name", RUNTIME_FAULTS)
def test_verification_refuses_states_in_other_places(models, bundles, name):
    with placed_otherwise(RUNTIME_FAULTS[name]):
        report = verify(bundles("words"), models("words").folder, mode="quick")
    failed = {check.name for check in report.failures()}
    assert failed and all("text with pictures" in each or "batch" in each for each in failed)
    assert any("text with pictures" in each for each in failed)


@pytest.mark.parametrize(
    ("text", "images", "message"),
    [
        ("a <image>", None, "1 placeholder of pictures"),
        ("a", PICTURES[:1], "no placeholders of pictures"),
        ("<image><image>", PICTURES[:1], "2 placeholders"),
        (["<image>", "a"], [PICTURES[0]], "for each of the 2 prompts"),
        ("<image>", 5, "must be a list of pictures"),
        ("<image>", ["/no/such/file"], "cannot be read"),
        (("<image>", "a"), PICTURES[:1], "prompt"),
        ("<image>" * 20, PICTURES[:1] * 20, "may have 512"),
        ("<image>" + "word " * 600, PICTURES[:1], "512"),
    ],
)  # fmt: skip
def test_wrong_pictures_are_refused(bundles, text, images, message):
    with pytest.raises(RequestError, match=message):
        load(bundles("states"), "cpu", 1).embed(text, images=images)


def test_loaders_say_which_model_it_is(bundles):
    with pytest.raises(BundleError, match="open it with load_picture_encoder"):
        load_encoder(bundles("states"))


def test_other_text_models_are_refused(models, tmp_path):
    folder = shutil.copytree(models("states").folder, tmp_path / "model")
    data = json.loads((folder / "config.json").read_text())
    data["text_config"] = {
        "model_type": "llama", "vocab_size": 340, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 1,
        "num_attention_heads": 5, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="of model_type 'llama'; supported here: modernbert"):
        open_source(folder)
    data["text_config"] = json.loads((models("states").folder / "config.json").read_text())["text_config"]
    data["architectures"] = ["ModernVBertForQuestionAnswering"]
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="whose head edgeformer does not have"):
        open_source(folder)
    data["architectures"], data["image_gain"], data["gain"] = ["ModernVBertModel"], 2, 3
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="gain = 3"):
        open_source(folder)


def test_files_for_the_code_of_a_repository_are_refused(tmp_path):
    """These are fields of ModernVBERT/modernvbert-embed, which transformers' own class does not read either."""
    text = {"model_type": "vbert", "text_model_name": "jhu-clsp/ettin-encoder-150m", "vocab_size": 50368}
    data = {"architectures": ["BiModernVBert"], "model_type": "modernvbert", "additional_vocab_size": 40}
    data |= {"text_config": text, "vision_config": {"model_type": "vbert", "embed_dim": 768}, "scale_factor": 4}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="text model of this modernvbert is of model_type 'vbert'; supported here: "):
        open_source(tmp_path)


def test_vectors_of_all_tokens_of_a_page_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "colmodernvbert", "vlm_config": {}}))
    with pytest.raises(ConfigError, match="a vector of every token of a page; 'modernvbert', which it holds"):
        open_source(tmp_path)


def test_the_default_config_is_read():
    made = transformers.ModernVBertConfig(vision_config={"image_size": 512})
    data = json.loads(json.dumps(made.to_dict()))
    with torch.device("meta"):
        model = transformers.ModernVBertModel(made)
    _, config = with_tower(data, *read_model_config(data))
    assert config.picture_tokens == 64
    unread = sum(each.numel() for each in model.vision_model.head.parameters())
    assert account(config).parameters == sum(each.numel() for each in model.parameters()) - unread


def test_commands_read_pictures(bundles, tmp_path):
    paths = [tmp_path / f"{index}.png" for index in range(2)]
    for path, pixels in zip(paths, PICTURES, strict=False):
        Image.fromarray(pixels).save(path)

    def run(command, name, *line):
        result = CliRunner().invoke(cli, [command, str(bundles(name)), *map(str, line), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    images = ["--image", paths[0], "--image", paths[1]]
    runtime = load(bundles("states"), "cpu", 1)
    rows = run("embed", "states", "a", "<image> b", *images)
    assert [row["text"] for row in rows] == ["a", f"<image> b {paths[0]}", f"<image> {paths[1]}"]
    expected = runtime.embed(["a", "<image> b", "<image>"], images=[[], paths[:1], paths[1:]])
    assert np.array([row["vector"] for row in rows]) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    words = load(bundles("words"), "cpu", 1)
    filled = run("run", "words", f"a {MASK}", *images[:2])
    assert filled[0]["token_id"] == words.fill_mask(f"<image>a {MASK}", images=paths[:1])[0].token_id
    labelled = run("run", "labels", "<image>", *images[:2])
    assert labelled[0]["label"] == load(bundles("labels"), "cpu", 1).classify("<image>", images=paths[:1])[0].label
    refused = CliRunner().invoke(
        cli, ["run", str(bundles("token labels")), "a", *map(str, images), "--aggregation", "max"]
    )
    assert refused.exit_code != 0 and "--aggregation joins tokens of a text alone" in refused.output
    told = CliRunner().invoke(cli, ["info", str(bundles("labels"))])
    assert told.exit_code == 0 and "classification head, 1 tokens a picture" in " ".join(told.output.split())


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("words", 'print(model.fill_mask("<image>This is a [MASK].", images=["cat.jpg"]))'),
        ("labels", 'print(model.classify("<image>", images=["cat.jpg"]))'),
        ("states", 'print(model.embed(["A cat sleeps.", "<image>"], images=[[], ["cat.jpg"]]).shape)'),
    ],
)
def test_the_card_shows_how_pictures_are_read(bundles, tmp_path, monkeypatch, name, line):
    card = model_card(Manifest.read(bundles(name)), "", bundles(name))
    assert line in card and "tiles of 28 × 28 pixels" in card
    Image.fromarray(PICTURES[0]).save(tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)
    model = load(bundles(name), "cpu", 1)
    exec(line, {"model": model})
