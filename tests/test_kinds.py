"""Every table that is keyed by the kind of model has all kinds, and nothing asks for the kind in other places."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from edgeformer.checkpoints.source import open_source
from edgeformer.cli.measure.info import HEADS as DESCRIBED_HEADS
from edgeformer.client_files.model_card import CARDS
from edgeformer.config import (
    DecoderConfig,
    EncoderConfig,
    GridVisionConfig,
    ModelConfig,
    NaflexVisionConfig,
    PictureEncoderConfig,
    PictureTextConfig,
    Projector,
    SoundTextConfig,
    SoundTowerConfig,
    Task,
    VisionConfig,
)
from edgeformer.documents.kinds import kinds_of
from edgeformer.export.parity.trials.kinds import TRIALS
from edgeformer.manifest.accounting import HEADS, account
from edgeformer.manifest.deployment import DEPLOYMENTS
from edgeformer.manifest.manifest import MODELS
from edgeformer.models import build_model
from edgeformer.models.kinds import KINDS
from edgeformer.models.model_spec import model_spec_of
from edgeformer.models.pictures.projectors import PROJECTORS
from edgeformer.models.pictures.tower_text import TOWERS
from edgeformer.runtime.tasks.loading import KINDS as LOADED_KINDS

ROOT = Path(__file__).parent.parent
TABLES = {
    "edgeformer.manifest.manifest.MODELS": MODELS,
    "edgeformer.models.kinds.KINDS": KINDS,
    "edgeformer.client_files.model_card.CARDS": CARDS,
    "edgeformer.export.parity.trials.kinds.TRIALS": TRIALS,
    "edgeformer.runtime.tasks.loading.KINDS": LOADED_KINDS,
}
ASKS = re.compile(r"(isinstance\(.*|case )(DecoderConfig|EncoderConfig|Seq2SeqConfig|VisionConfig)")
MOST_QUESTIONS = 15
"""Lines that may ask for the class of a config: to make one of another kind, or to tell a type checker."""
FILES_OF_A_KIND = {
    "edgeformer/client_files/model_card.py",
    "edgeformer/config/models/stack.py",
    "edgeformer/models/kinds.py",
    "export/parity/trials/kinds.py",
    "runtime/tasks/loading.py",
}
"""The files that another kind touches, such as a tower of pictures before a decoder; the rest of it is in new ones."""


@pytest.mark.parametrize("name", TABLES)
def test_table_has_every_kind(name):
    assert set(TABLES[name]) == set(get_args(Task)), f"{name} lacks a kind of model, or has one too many"


def test_tables_of_heads_have_every_stack():
    """A tower of pictures of any size and one of sound are stacks of other models alone."""
    stacks = {config for config in get_args(ModelConfig) if hasattr(config, "from_json")}
    stacks |= {GridVisionConfig, SoundTowerConfig}
    assert set(HEADS) == set(DESCRIBED_HEADS) == stacks
    assert stacks == {
        DecoderConfig, EncoderConfig, GridVisionConfig, NaflexVisionConfig, PictureEncoderConfig, PictureTextConfig,
        SoundTextConfig, SoundTowerConfig, VisionConfig,
    }  # fmt: skip


def test_five_files_name_every_kind():
    """A table by kind has its tasks as keys, or is a list of them."""
    named = re.compile(r'^\s*"seq2seq-lm": |"seq2seq-lm", "encoder"')
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("edgeformer", "export", "runtime")
        for path in (ROOT / folder).rglob("*.py")
        if any(named.search(line) for line in path.read_text(encoding="utf-8").splitlines())
    }
    assert found == FILES_OF_A_KIND


KINDS_BY_FILE = {
    ("edgeformer.manifest.pictures", "PROCESSOR"),
    ("edgeformer.manifest.placeholders", "PLACEHOLDER"),
}
"""Packages whose files are kinds, and the attribute that names the class of each."""


@pytest.mark.parametrize(("package", "attribute"), sorted(KINDS_BY_FILE))
def test_a_kind_of_a_part_is_named_as_its_file(package, attribute):
    found = kinds_of(package, attribute)
    assert found
    assert {name: kind.kind for name, kind in found.items()} == {name: name for name in found}


def test_every_kind_of_a_part_has_its_module():
    processors = (f"edgeformer.{place}" for place in ("manifest.pictures", "runtime.media.pictures.processors"))
    described, computed = (kinds_of(package, "PROCESSOR").keys() for package in processors)
    assert described == computed
    assert {each.kind for each in get_args(Projector)} == PROJECTORS.keys()
    towers = (*get_args(get_type_hints(PictureTextConfig)["tower"]), get_type_hints(SoundTextConfig)["tower"])
    assert {each.kind for each in towers} == TOWERS.keys()


def test_few_lines_ask_for_the_kind():
    lines = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("edgeformer", "export", "runtime")
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ASKS.search(line)
    ]
    assert len(lines) <= MOST_QUESTIONS, lines


def test_another_kind_is_entries(monkeypatch):
    """A kind that no table knows fails by name; with entries it is built, counted, exported and described."""

    class ToyConfig(DecoderConfig):
        task = "toy-lm"

    decoder = open_source("tiny-llama").config
    config = ToyConfig(**{field.name: getattr(decoder, field.name) for field in fields(decoder)})
    with pytest.raises(KeyError, match="toy-lm"):
        build_model(config)
    monkeypatch.setitem(KINDS, "toy-lm", KINDS["causal-lm"])
    monkeypatch.setitem(HEADS, ToyConfig, HEADS[DecoderConfig])
    spec = model_spec_of(config)
    assert spec.task == "toy-lm"
    assert [graph.file for graph in spec.graphs] == ["onnx/model.onnx"]
    assert account(config) == account(decoder)
    assert spec.parameter_shapes() == model_spec_of(decoder).parameter_shapes()
    assert DEPLOYMENTS["server"].proposal(config, "ort", "cpu").precision == "int8"
