"""Presets are the files that their training wrote, and what SECURITY.md claims has its tests."""

import hashlib
import re
from pathlib import Path

import pytest

from edgeformer.checkpoints.found_model import PRESETS

ROOT = Path(__file__).parents[1]
TRAINED = {
    "tiny-llama": "tiny_llama.py",
    "tiny-embed": "tiny_embed.py",
    "tiny-translate": "tiny_translate.py",
    "tiny-vision": "tiny_vision.py",
}
"""The recipe in tools/presets/ that trained each preset; `tools/presets/train_preset.py` runs it."""


def test_presets_are_what_was_recorded():
    """After a training: cd edgeformer/presets && sha256sum $(find * -type f) > ../../tests/presets.sha256"""
    recorded = dict(line.split(maxsplit=1)[::-1] for line in (ROOT / "tests/presets.sha256").read_text().splitlines())
    found = {
        path.relative_to(PRESETS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in PRESETS.rglob("*")
        if path.is_file() and path.parent != PRESETS
    }
    assert found == recorded


@pytest.mark.parametrize("preset", TRAINED)
def test_a_preset_names_the_recipe_that_trained_it(preset):
    recipe = (ROOT / "tools/presets" / TRAINED[preset]).read_text(encoding="utf-8")
    assert preset in recipe
    assert {path.name for path in PRESETS.iterdir() if (path / "config.json").is_file()} == set(TRAINED)


def test_every_claim_of_the_security_page_has_its_test():
    claimed = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(claimed) >= 12
    for file, name in claimed:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"
