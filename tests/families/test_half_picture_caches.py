"""A float16 cache behind pictures: who gets it, and that faults of the graph behind them are found."""

import numpy as np
import pytest
from faulty_graph import cast_through_bfloat16, faulty
from picture_text_rows import MARKS, MODELS, save
from slow_rows import slow_unless
from sound_text_rows import MODELS as SOUND_MODELS
from sound_text_rows import save as save_sound

from edgeformer.export import export_model
from edgeformer.export.parity.trials import graph_forms
from edgeformer.export.parity.trials.half_cache import open_float_products
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load

SQUARES, BLOCKS = ("qwen2_vl", "squares"), ("gemma3", "a window in a block")
SHARED_KEYS = "gemma4"
"""The family whose layers read the keys and values of others."""
FIRST = [(family, next(iter(models))) for family, models in MODELS.items() if family != SHARED_KEYS]
CHECKS = {f"fp16 cache, {each}: differing" for each in ("numbers", "logits")}


def exported(family, name, folder, save=save, **options):
    (folder / "model").mkdir()
    save(family, name, folder / "model")
    return export_model(folder / "model", folder / "bundle", **options)


@pytest.mark.parametrize(("family", "name"), slow_unless([SQUARES, BLOCKS], FIRST))
def test_a_desktop_keeps_pictures_in_float16(tmp_path, family, name):
    result = exported(family, name, tmp_path, precision="int8", deployment="desktop")
    assert result.manifest.plan.cache_precision == "fp16"
    assert {check.name for check in result.report.checks} >= CHECKS | {f"pictures, {each}" for each in CHECKS}
    model = load(tmp_path / "bundle", "cpu", 1)
    pictures = [np.random.default_rng(index).integers(0, 256, (40, 50, 3), np.uint8) for index in range(2)]
    mark = MARKS.get(family, "<image>")
    found = model.generate(f"{mark} a {mark} b", images=pictures, max_new_tokens=4)
    again = model.generate(f"{mark} a {mark} b", images=pictures, max_new_tokens=4)
    assert again.token_ids == found.token_ids
    kept = zip(model.manifest.cache.tensors(), sum(model.new_decoder(1, 8).cache.read(0), ()), strict=True)
    assert {part.dtype for tensor, part in kept if tensor.per_token} == {np.dtype(np.float16)}


@pytest.mark.slow
@pytest.mark.parametrize("family", SOUND_MODELS)
def test_a_desktop_keeps_recordings_in_float16(tmp_path, family):
    name, options = next(iter(SOUND_MODELS[family])), {"precision": "int8", "deployment": "desktop"}
    result = exported(family, name, tmp_path, save_sound, **options)
    assert result.manifest.plan.cache_precision == "fp16"
    assert {check.name for check in result.report.checks} >= {f"recordings, {each}" for each in CHECKS}


@pytest.mark.slow
def test_layers_that_share_keys_keep_float32(tmp_path):
    name = next(iter(MODELS[SHARED_KEYS]))
    result = exported(SHARED_KEYS, name, tmp_path, precision="int8", deployment="desktop", verify=None)
    assert result.manifest.plan.cache_precision is None


def test_another_rounding_behind_pictures_is_found(tmp_path, monkeypatch):
    """Where the trial over a float32 cache cannot see it: that one runs the right graph here."""
    bundle = exported(*SQUARES, tmp_path, precision="int8", cache_precision="fp16", verify=None).path
    file = Manifest.read(bundle).graphs["embedding_decoder"].file
    place = faulty(bundle, tmp_path / "faulty", cast_through_bfloat16, name=file)

    def opened(path, *others, widened):
        return open_float_products(bundle / path.relative_to(place) if widened else path, *others, widened=widened)

    monkeypatch.setattr(graph_forms, "open_float_products", opened)
    subject = open_subject(bundle, tmp_path / "model")
    report = verify_graph(place, subject.manifest, subject.model_spec, subject.weights)
    assert "pictures, fp16 cache, numbers: differing" in {check.name for check in report.failures()}
    exact = [check for check in report.checks if check.name.startswith(("pictures, text", "fp16 cache"))]
    assert len(exact) > 4 and all(check.passed for check in exact)
