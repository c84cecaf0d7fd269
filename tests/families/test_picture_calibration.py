"""Calibration by pictures and texts: what a model reads of them, where they come from, and what they are good for.

The oracle is transformers' module over the same checkpoint in float64, with the pixel values and the ids of its own
processor.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import picture_text_rows as rows
import pytest
import torch
from picture_text_rows import save
from PIL import Image
from slow_rows import slow_unless
from test_picture_text import theirs
from tower_models import error

from edgeformer.checkpoints.source import open_source
from edgeformer.errors import ExportError
from edgeformer.export import export_model
from edgeformer.export.calibrate import forward_hooks, picture_texts
from edgeformer.export.calibrate.forward_hooks import inputs_of
from edgeformer.export.calibrate.text import read_calibration
from edgeformer.export.importers.checkpoint import open_checkpoint
from edgeformer.export.importers.pictures.library_processor import library_processor
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import QuantizationOverrides
from edgeformer.runtime import load

MODELS = [
    ("smolvlm", "tiles"), ("qwen2_vl", "squares"), ("qwen3_vl", "deepstack"), ("llava_next", "clip"),
    ("gemma4", "clamped"), ("internvl", "norms"), ("lfm2_vl", "tiles"),
]  # fmt: skip
TEXTS = ["What is left of the circle?", "How many?"]


def picture(seed):
    return np.random.default_rng(seed).integers(0, 256, (30 + 10 * seed, 50, 3), np.uint8)


@pytest.fixture
def folder(tmp_path):
    """A folder of two pictures and texts, in a room of its own."""
    place = tmp_path / "pictures"
    place.mkdir()
    for index, text in enumerate(TEXTS):
        Image.fromarray(picture(index)).save(place / f"{index}.png")
        (place / f"{index}.txt").write_text(f"{text}\n")
    (place / "notes.md").write_text("nothing")
    return place


def opened(family, name, place):
    module = save(family, name, place)
    model = open_checkpoint(open_source(place))
    return SimpleNamespace(
        folder=place, module=module, processor=library_processor(place), model=model,
        read=lambda given: read_calibration(
            given, place, model.model_spec, model.origin.pictures, model.origin.placeholder
        ),
        reference=Reference(model.model_spec, model.weights, torch.float32),
    )  # fmt: skip


def run(model, text):
    """Return the logits of each text [S, V]."""
    inputs = inputs_of(model.reference, text)
    with model.reference.loaded():
        logits = inputs.run(model.reference, model.model.model_spec)
    return [row[mask.bool()].numpy() for row, mask in zip(logits, inputs.mask, strict=True)]


@pytest.mark.parametrize(("family", "name"), slow_unless(set(MODELS[:5]), MODELS))
def test_texts_are_read_as_transformers_reads_them(tmp_path, folder, family, name):
    model = opened(family, name, tmp_path / "model")
    text = model.read(folder)
    found = run(model, text)
    places = np.argsort(np.arange(2) * picture_texts.SPREAD % 1)
    for place, tokens, logits in zip(places, text.texts, found, strict=True):
        parts = [{"type": "image"}, {"type": "text", "text": TEXTS[place]}]
        prompt = model.processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
        )
        encoded, expected = theirs(model, prompt, [picture(place)])
        assert tokens.tolist() == encoded["input_ids"][0].tolist()
        assert error(logits, expected) <= 1e-5
        _, other = theirs(model, prompt, [picture(1 - place)[: len(picture(place))]])  # the control
        assert other.shape != expected.shape or error(logits, other) > 1e-3
    assert text.source.pictures == 2 and text.source.tokens == sum(map(len, text.texts))


WIDE = {
    "hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
INT4 = {"precision": "int4", "quantization": QuantizationOverrides(block=32)}
WORDS = ["what", "is", "left", "of", "the", "circle", "and", "how", "many", "red", "squares", "are", "there"]


def text_of(seed):
    return " ".join(np.random.default_rng(seed).choice(WORDS, 8))


def picture_of(seed):
    draws = np.random.default_rng(seed)
    return draws.integers(0, 256, (*draws.integers(20, 70, 2), 3), np.uint8)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A SmolVLM whose text model has blocks of 32, with 24 pictures and texts, and as much text without pictures."""
    place = tmp_path_factory.mktemp("wide")
    row = rows.MODELS["smolvlm"]["tiles"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rows.MODELS["smolvlm"], "wide", replace(row, text=row.text | WIDE))
        save("smolvlm", "wide", place / "model")
    (place / "pictures").mkdir()
    for index in range(24):
        Image.fromarray(picture_of(index)).save(place / "pictures" / f"{index:02}.png")
        (place / "pictures" / f"{index:02}.txt").write_text(text_of(index))
    (place / "text.txt").write_text(" ".join(map(text_of, range(400))))
    exported = {
        "full": {}, "text": {"calibration": place / "text.txt", **INT4},
        "pictures": {"calibration": place / "pictures", **INT4},
    }  # fmt: skip
    bundles = {
        name: export_model(place / "model", place / f"bundle-{name}", verify=None, **options).path
        for name, options in exported.items()
    }
    return SimpleNamespace(place=place, folder=place / "model", pictures=place / "pictures", bundles=bundles)


def loss(wide, bundle):
    """Return the mean squared error of logits of texts with pictures that no calibration has seen."""
    full, rounded = load(wide.bundles["full"], "cpu", 1), load(bundle, "cpu", 1)
    errors = []
    for seed in range(100, 112):
        given = f"User: <image>{text_of(seed)}", [picture_of(seed)]
        errors.append(np.square(rounded.forward(*given) - full.forward(*given)).mean())
    return np.mean(errors)


def test_pictures_make_better_integers_for_pictures(wide, tmp_path, monkeypatch):
    seen = loss(wide, wide.bundles["pictures"])
    assert seen < 0.6 * loss(wide, wide.bundles["text"])  # 0.71 and 2.43 when this was written
    plain = forward_hooks._features
    monkeypatch.setattr(forward_hooks, "_features", lambda *given: 0 * plain(*given))  # the planted fault
    blind = export_model(wide.folder, tmp_path / "blind", calibration=wide.pictures, verify=None, **INT4)
    assert seen < 0.7 * loss(wide, blind.path)
    assert blind.manifest.plan.quantization.calibration == sealed(wide, "pictures").calibration  # the same text


def sealed(wide, name):
    return Manifest.read(wide.bundles[name]).plan.quantization


def test_the_manifest_says_what_was_seen(wide):
    found = sealed(wide, "pictures").calibration
    assert (found.name, found.pictures, len(found.sha256)) == ("pictures", 24, 64)
    assert f"{found.tokens:,} tokens, those of 24 pictures included, of pictures" in str(sealed(wide, "pictures"))
    assert sealed(wide, "text").calibration.pictures == 0
    assert "pictures" not in str(sealed(wide, "text"))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"tower_precision": "int8"}, marks=pytest.mark.slow),
        pytest.param({"target_size": "500KB"}, marks=pytest.mark.slow),
        {"precision": "int8", "smooth": True, "quantization": QuantizationOverrides(activations="per_token")},
    ],
    ids=["a tower in int8", "a target size", "smoothing"],
)
def test_every_use_of_a_text_takes_pictures(wide, tmp_path, options):
    options = {**INT4, **options}
    if "tower_precision" in options:
        options["quantization"] = replace(options["quantization"], tower=options.pop("tower_precision"))
    if "target_size" in options:
        del options["precision"], options["quantization"]
    exported = export_model(wide.folder, tmp_path / "bundle", calibration=wide.pictures, verify="quick", **options)
    assert exported.report.passed
    smoothing = exported.manifest.smoothing
    source = exported.manifest.plan.quantization.calibration or smoothing.text
    assert source.pictures == 24


def test_rows_and_folders_are_the_same_texts(tmp_path, folder):
    model = opened("smolvlm", "tiles", tmp_path / "model")
    expected = model.read(folder)
    rows_of = [{"image": f"pictures/{index}.png", "prompt": text} for index, text in enumerate(TEXTS)]
    parts = [
        {"images": [each["image"]], "messages": [{"role": "user", "content": [
            {"type": "image"}, {"type": "text", "text": each["prompt"]}
        ]}]} for each in rows_of
    ]  # fmt: skip
    named = [{"file_name": each["image"].split("/")[1], "text": each["prompt"]} for each in rows_of]
    for name, written in (("a.jsonl", rows_of), ("b.jsonl", parts), ("pictures/metadata.jsonl", named)):
        (tmp_path / name).write_text("".join(f"{json.dumps(each)}\n\n" for each in written))
        found = model.read(folder if name.startswith("pictures") else tmp_path / name)
        assert [each.tolist() for each in found.texts] == [each.tolist() for each in expected.texts]
        assert [len(each) for each in found.pictures] == [1, 1]
    (tmp_path / "c.jsonl").write_text(json.dumps(rows_of[0] | {"answer": "The square."}))
    [answered] = model.read(tmp_path / "c.jsonl").texts
    [asked] = [each for each in expected.texts if answered.tolist()[: len(each) - 5] == each.tolist()[:-5]]
    assert len(answered) > len(asked)


def test_many_rows_are_taken_from_everywhere(tmp_path, folder, monkeypatch):
    model = opened("smolvlm", "tiles", tmp_path / "model")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": f"{n:03}"}) + "\n" for n in range(200)))
    monkeypatch.setattr(picture_texts, "TOKENS", 400)
    found = model.read(tmp_path / "a.jsonl")
    assert found.pictures == () and found.source.pictures == 0
    tokenizer = model.processor.tokenizer
    numbers = sorted(int("".join(filter(str.isdigit, tokenizer.decode(each)))) for each in found.texts)
    assert sum(map(len, found.texts)) <= 400 and numbers[0] < 20 and numbers[-1] > 180
    assert max(np.diff(numbers)) < 3 * 200 / len(numbers)


@pytest.mark.parametrize(
    ("rows_of", "message"),
    [
        ('{"image": "b.png"}', r"^line 1 of a\.jsonl: .*b\.png cannot be read to calibrate with"),
        ('{"image": "a.jsonl"}', r"^line 1 of a\.jsonl cannot be read to calibrate with: .*a\.jsonl is not a picture"),
        ('{"other": 1}', r"^line 1 of .*a\.jsonl is no JSON object with prompt"),
        ("nothing", r"^line 1 of .*a\.jsonl is no JSON object"),
        ('{"image": 3}', r"^line 1 of a\.jsonl has the pictures 3; they must be a path"),
        ('{"image": "pictures/0.png", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}',
         r"^line 1 of a\.jsonl cannot be read to calibrate with: the prompt has no placeholders"),
        ('{"prompt": "' + "a b c " * 400 + '"}', r"^line 1 of a\.jsonl has .* tokens, and the model reads 512"),
        ("", "has neither pictures"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, folder, rows_of, message):
    model = opened("smolvlm", "tiles", tmp_path / "model")
    (tmp_path / "a.jsonl").write_text(rows_of)
    with pytest.raises(ExportError, match=message):
        model.read(tmp_path / "a.jsonl")


def test_a_model_of_text_takes_rows_without_pictures(tmp_path, folder):
    with pytest.raises(ExportError, match=r"^0\.png cannot .* with: it has a picture, and this model reads none"):
        export_model("tiny-llama", tmp_path / "bundle", precision="int4", calibration=folder)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": text_of(seed)}) + "\n" for seed in range(20)))
    options = {"precision": "int4", "calibration": tmp_path / "a.jsonl", "verify": None}
    quantized = export_model("tiny-llama", tmp_path / "bundle", **options).manifest.plan.quantization
    tokenizer = load(tmp_path / "bundle", "cpu", 1).tokenizer
    if tokenizer.chat_template is None:
        read = [tokenizer.encode(text_of(seed)) for seed in range(20)]
    else:
        read = [tokenizer.encode_chat([{"role": "user", "content": text_of(seed)}]) for seed in range(20)]
    assert (quantized.calibration.name, quantized.calibration.tokens) == ("a.jsonl", sum(map(len, read)))
