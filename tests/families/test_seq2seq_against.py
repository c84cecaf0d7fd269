"""A bundle of every encoder-decoder is compared with its own checkpoint, and with no other length of it."""

import pytest
from seq2seq_rows import FAMILIES
from slow_rows import slow_unless

from edgeformer.errors import ConfigError
from edgeformer.export import export_model
from edgeformer.export.importers.opened_bundle import open_subject

SAVED = [family for family in FAMILIES if family != "transformer"]
"""Families whose models transformers saves."""
FAST = {"bart", "t5", "t5gemma", "whisper"}
"""One of each kind of positions and of sources; the others are slow."""


@pytest.mark.parametrize("family", slow_unless(FAST, SAVED))
def test_a_checkpoint_is_read_as_its_bundle_was(family, make_model, tmp_path):
    row = FAMILIES[family]
    folder = make_model(family, auto=row.auto, **row.sizes | next(iter(row.models.values())))
    export_model(folder, tmp_path / "bundle", verify=None)
    subject = open_subject(tmp_path / "bundle", folder)
    assert subject.model_spec.config == subject.manifest.model


@pytest.mark.parametrize("asked", [40, 56])
def test_shortened_sources_of_led_are_read_so_again(asked, make_model, tmp_path):
    """The encoder of the row has 64 positions, its decoder 48."""
    row = FAMILIES["led"]
    folder = make_model("led", auto=row.auto, **row.sizes | next(iter(row.models.values())))
    export_model(folder, tmp_path / "bundle", context_length=asked, verify=None)
    assert open_subject(tmp_path / "bundle", folder).manifest.context_length == min(asked, 48)
    other = make_model("led", auto=row.auto, **row.sizes | {"d_model": 32} | next(iter(row.models.values())))
    with pytest.raises(ConfigError, match="another model"):
        open_subject(tmp_path / "bundle", other)
