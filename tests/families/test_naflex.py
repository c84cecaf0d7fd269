"""Towers of pictures of any size by themselves (SigLIP 2, NaFlex): planted faults, padding, and shapes at the edges."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from dual_rows import TEXTS, make_dual
from torch.nn import functional as F
from vision_rows import BUDGET, MLP, NAFLEX, SIGLIP2

from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.config import NaflexVisionConfig
from edgeformer.errors import ConfigError, ExportError, RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.importers.checkpoint import open_checkpoint
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures
from edgeformer.manifest.accounting import account
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.pictures import naflex
from edgeformer.models.pictures.naflex import NaflexVisionEncoder
from edgeformer.models.pictures.table_positions import antialiased
from edgeformer.runtime import Engine, benchmark, load
from edgeformer.runtime.media.pictures.processors.patch_budget import PatchBudget
from edgeformer.runtime.tasks.vision import picture_reader, tower_inputs

SMALL = [np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8) for seed, shape in enumerate(
    [(30, 50), (71, 20), (13, 90), (1, 1), (200, 300)]
)]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A seeded random model of both halves."""
    return make_dual("siglip2", "both", tmp_path_factory.mktemp("siglip2"))


@pytest.fixture(scope="module")
def bundle(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    return export_model(model.folder, folder, precision="fp32", verify="quick").path


POSITIONS, FORWARD = NaflexVisionEncoder._positions, NaflexVisionEncoder.forward


def unstretched(self, shapes, length):
    """Return the positions of the table as they stand there, whatever the size of the picture."""
    side, numbers = self.config.table_side, torch.arange(length).unsqueeze(0)
    rows, columns = numbers // shapes[:, 1:], numbers % shapes[:, 1:]
    return self.position_embedding(rows.clamp(max=side - 1) * side + columns.clamp(max=side - 1))


def on_corners(index, count, side, wide):
    """Return parts where the corners of the table are those of the picture."""
    where = index.to(wide) * (side - 1) / (count.to(wide) - 1).clamp(min=1)
    return (1 - (torch.arange(side) - where.unsqueeze(-1)).abs()).clamp(min=0)


MODULE_FAULTS = {
    "height and width swapped": (
        NaflexVisionEncoder, "_positions", lambda self, shapes, length: POSITIONS(self, shapes.flip(1), length),
    ),
    "padding that is attended to": (
        NaflexVisionEncoder, "forward",
        lambda self, values, mask, shapes: FORWARD(self, values, torch.ones_like(mask), shapes),
    ),
    "positions that are not stretched": (NaflexVisionEncoder, "_positions", unstretched),
    "corners on corners": (naflex, "antialiased", on_corners),
}  # fmt: skip


@pytest.mark.parametrize("fault", MODULE_FAULTS)
def test_an_export_refuses_a_tower_that_is_another(model, monkeypatch, fault):
    """transformers' module is the other reader; without the fault both agree."""
    source = open_source(model.folder)
    assert compare_modules(source, source.weights()).difference <= 1e-12
    monkeypatch.setattr(*MODULE_FAULTS[fault])
    with pytest.raises(ExportError, match="does not compute what transformers"):
        compare_modules(source, source.weights())


def with_inputs(change):
    """Return a change of what the runtime feeds to a graph."""

    def changed(tower, values):
        return change(tower_inputs.tower_inputs(tower, values))

    return changed


RUNTIME_FAULTS = {
    "height and width swapped": with_inputs(lambda read: read | {"spatial_shapes": read["spatial_shapes"][:, ::-1]}),
    "mask of ones": with_inputs(
        lambda read: read | {"pixel_attention_mask": np.ones_like(read["pixel_attention_mask"])}
    ),
    "patches in another order": with_inputs(lambda read: read | {"pixel_values": read["pixel_values"][:, ::-1].copy()}),
}


@pytest.mark.parametrize("fault", RUNTIME_FAULTS)
def test_verification_refuses_other_inputs(model, bundle, monkeypatch, fault):
    from edgeformer.export.parity.trials.pictures import tower_samples

    assert verify(bundle, model.folder, mode="quick").passed
    monkeypatch.setattr(tower_samples, "tower_inputs", RUNTIME_FAULTS[fault])
    failed = {check.name for check in verify(bundle, model.folder, mode="quick").failures()}
    assert any(name.startswith(("picture", "batch of", "similarity")) for name in failed)
    monkeypatch.setattr(picture_reader, "tower_inputs", RUNTIME_FAULTS[fault])
    found = load(bundle).embed(images=model.pictures)
    assert np.abs(found - model.expected["image_embeds"]).max() > 1e-3


GRID, VALUES = PatchBudget.grid, PatchBudget.values


def columns_first(self, pixels, name=""):
    """Return patches column by column."""
    values, shape = VALUES(self, pixels), self.grid(*pixels.shape[:2])
    return values.reshape(*shape, -1).swapaxes(0, 1).reshape(values.shape)


def channels_first(self, pixels, name=""):
    """Return patches whose numbers are those of one channel after the other."""
    values = VALUES(self, pixels)
    return values.reshape(len(values), -1, 3).swapaxes(1, 2).reshape(values.shape)


PIXEL_FAULTS = {
    "height and width swapped": ("grid", lambda self, height, width: GRID(self, width, height)),
    "rows for columns": ("grid", lambda self, height, width: GRID(self, height, width)[::-1]),
    "blue for red": ("values", lambda self, pixels, name="": VALUES(self, pixels[..., ::-1])),
    "channels first": ("values", channels_first),
    "columns before rows": ("values", columns_first),
}  # fmt: skip


@pytest.mark.parametrize("fault", PIXEL_FAULTS)
def test_an_export_refuses_other_patches(model, tmp_path, monkeypatch, fault):
    source = open_source(changed(model, tmp_path / "means", PROCESSOR, image_mean=[0.1, 0.2, 0.3]))
    assert compare_pictures(source.folder, source.pictures) == ()
    monkeypatch.setattr(PatchBudget, *PIXEL_FAULTS[fault])
    with pytest.raises(ExportError, match="edgeformer does not make of a picture what Siglip2ImageProcessorPil"):
        open_checkpoint(source, compared=source)


def test_positions_are_those_of_torch():
    """torch 2.13 has a fault for one column of a contiguous table: each row is the first; channels last has none."""
    wrong = []
    for side in (1, 2, 3, 7, 16):
        table = torch.randn(1, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(side))
        for rows, columns in ((1, 1), (1, 9), (9, 1), (2, 5), (5, 2), (16, 16), (23, 11), (3, 40)):
            down, right = (
                antialiased(torch.arange(count), torch.tensor(count), side, torch.float64) for count in (rows, columns)
            )
            ours, options = down @ table @ right.t(), {"mode": "bilinear", "antialias": True}
            transposed = F.interpolate(table.transpose(2, 3).contiguous(), (columns, rows), **options).transpose(2, 3)
            theirs = F.interpolate(table, (rows, columns), **options)
            if columns > 1:
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
            else:
                torch.testing.assert_close(ours, transposed if rows > 1 else ours, rtol=0, atol=1e-12)
                wrong += [(side, rows)] if not torch.allclose(theirs, ours) else []
    assert wrong == [(2, 9), (3, 9), (7, 9), (16, 9)]


def test_a_batch_changes_nothing_for_any_shape(model, bundle):
    ours = load(bundle)
    together = ours.embed(images=SMALL, batch_size=5)
    for row, picture in enumerate(SMALL):
        np.testing.assert_allclose(ours.embed(images=picture), together[row], atol=1e-6)
    assert [ours.tokens_of(each) for each in SMALL[:2]] == [
        int(count) for count in model.inputs["pixel_attention_mask"].sum(1)[:2]
    ]
    with Engine(ours) as engine:
        waiting = [*engine.submit_texts(TEXTS[:2]), *engine.submit_pictures(SMALL)]
        found = [each.result(60) for each in waiting]
    np.testing.assert_allclose(found, [*ours.embed(TEXTS[:2]), *together], atol=1e-6)
    best = ours.rank(TEXTS[0], SMALL)
    assert [each.index for each in best] == np.argsort(-(together @ ours.embed(TEXTS[0])), kind="stable").tolist()


def test_several_pictures_have_no_values_of_one_shape(bundle):
    ours = load(bundle)
    assert ours.pixel_values(SMALL[0]).shape == (4, 7, 75)
    with pytest.raises(RequestError, match="pictures of any size have no values of one shape. Use values_of"):
        ours.pixel_values(SMALL)


PROCESSOR = "preprocessor_config.json"


def changed(model, folder, file, **change):
    """Return a copy of a model's folder with other fields in a file."""
    folder.mkdir()
    for path in model.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | change))
    return folder


def test_texts_are_made_lower_case(model, tmp_path):
    """transformers' class makes them so, and tokenizer.json in published checkpoints does not."""
    normalizer = json.loads((model.folder / "tokenizer.json").read_text())["normalizer"]
    lower, replace = normalizer["normalizers"]
    assert (lower["type"], replace["type"]) == ("Lowercase", "Replace")
    folder = changed(model, tmp_path / "model", "tokenizer.json", normalizer=replace)
    ours = load(export_model(folder, tmp_path / "bundle", precision="fp32", verify="quick").path)
    assert np.abs(ours.embed(TEXTS) - model.expected["text_embeds"]).max() <= 1e-5
    np.testing.assert_array_equal(ours.embed("TWO DOGS"), ours.embed("two dogs"))
    assert ours.embed(images=SMALL[0]).shape == (32,)


REFUSED = [
    (PROCESSOR, {"patch_size": 4}, "makes patches of 4 pixels a side, and by config.json the model reads those of 5"),
    (PROCESSOR, {"do_resize": False}, "do_resize = False, which edgeformer does not have for patches"),
    (PROCESSOR, {"max_num_patches": 0}, "PatchBudgetProcessor.most_patches is 0"),
    (PROCESSOR, {"pan": 1}, "fields that edgeformer does not know: pan = 1"),
    (
        PROCESSOR,
        {"image_processor_type": "SiglipImageProcessor", "patch_size": None, "max_num_patches": None},
        "the image processor makes pictures of one size, and the model reads patches of any size",
    ),
    ("config.json", {"vision_config": {"num_patches": 15}}, "num_patches = 15 in its tower; it must be a square"),
    ("config.json", {"vision_config": {"vision_use_head": False}}, "with a pooled vector"),
    ("config.json", {"architectures": ["Siglip2TextModel"]}, "edgeformer has Siglip2Model, Siglip2VisionModel"),
]


@pytest.mark.parametrize(("file", "change", "said"), REFUSED)
def test_what_such_a_tower_does_not_have_is_refused(model, tmp_path, file, change, said):
    if "vision_config" in change:
        vision = json.loads((model.folder / file).read_text())["vision_config"]
        change = {"vision_config": vision | change["vision_config"]}
    with pytest.raises(ConfigError, match=said):
        open_source(changed(model, tmp_path / "changed", file, **change))


PUBLISHED = Path(__file__).with_name("real_dual_configs")
DIGESTS = {
    "google--siglip2-base-patch16-naflex.json": "c0b8c2e7f0527b0bea1b1d9abe0381c0f294352df92439c54590b8420e539118",
    "google--siglip2-naflex.preprocessor.json": "1125703e5446d5b6ff4d5893a33bac128cdd21dc12e3dad2469a648fb0ae3bf7",
}
"""SHA-256 of the files of google/siglip2-base-patch16-naflex at revision b53b807d. Its larger sibling has the same
processor; the sibling's config.json is the base's with the published sizes of So400m."""


@pytest.mark.parametrize("name", DIGESTS)
def test_the_files_are_the_published_ones(name):
    assert hashlib.sha256((PUBLISHED / name).read_bytes()).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("size", ["base", "so400m"])
def test_published_towers_are_those_of_transformers(tmp_path, size):
    shutil.copy(PUBLISHED / f"google--siglip2-{size}-patch16-naflex.json", tmp_path / "config.json")
    shutil.copy(PUBLISHED / "google--siglip2-naflex.preprocessor.json", tmp_path / PROCESSOR)
    source = open_source(tmp_path)
    assert source.pictures.described(None) == "up to 256 patches of 16 × 16 pixels"
    assert compare_pictures(tmp_path, source.pictures) == ()
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.Siglip2Model(theirs)
    assert account(source.config).parameters == sum(each.numel() for each in model.parameters())


def test_a_processor_of_patches_is_for_such_a_tower(tmp_path):
    torch.manual_seed(1)
    tower = transformers.ViTModel(transformers.ViTConfig(**MLP))
    tower.save_pretrained(tmp_path)
    SIGLIP2(**BUDGET).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cuts pictures of any size, and the model reads those of one size"):
        open_source(tmp_path)


def test_the_benchmark_and_info_know_such_a_tower(bundle):
    assert len(benchmark(bundle, batch_sizes=[2], rounds=1).workloads) == 1
    result = CliRunner().invoke(cli, ["info", str(bundle)])
    assert result.exit_code == 0, result.output
    assert "pictures of any size in up to 30 patches, pooled vector" in " ".join(result.output.split())
    card = (bundle / "README.md").read_text()
    assert '"spatial_shapes": np.array([[2, 3]])' in card
    checked = CliRunner().invoke(cli, ["check", str(bundle)]).output
    assert re.search(r"^edgeformer +loads ", checked, re.MULTILINE)
    assert "model.onnx requires pixel_attention_mask, spatial_shapes" in " ".join(checked.split())  # transformers.js


def test_the_manifest_says_how_pictures_become_patches(bundle):
    manifest = Manifest.read(bundle)
    tower = manifest.model.vision
    assert isinstance(tower, NaflexVisionConfig)
    assert (tower.context_length, tower.table_side) == (BUDGET["max_num_patches"], 4)
    assert (manifest.pictures.kind, manifest.pictures.patch) == ("patch_budget", NAFLEX["patch_size"])
