"""The preset that sees: what it says depends on every place, tile and block, so that a wrong one shows.

That an export refuses such faults is proved for random models in tests/families/test_picture_text.py; these ask trained
weights, as a user would.
"""

import copy
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from presets import tiny_vision
from presets.differentiable import differentiable_ops
from presets.training import evaluation_module
from tokenizers import Tokenizer

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.errors import ExportError
from edgeformer.export import export_model
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures
from edgeformer.models import build_model
from edgeformer.runtime import load
from edgeformer.runtime.measure.evaluation.exact_match import evaluate
from edgeformer.runtime.measure.evaluation.questions import choose, read_questions
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.media.pictures.processors.tiles import Tiles

FOLDER = PRESETS / "tiny-vision"
SHAPES = Path(__file__).parents[2] / "docs" / "images" / "shapes.png"
EACH, HARD = 16, ("describe", "relation")
"""Questions of each kind, and kinds that need every cell or the place of one: a fault shows there first. Two blocks of
the tower exchanged left every colour right, and no list of things.
"""


@pytest.fixture(scope="module")
def source():
    return open_source("tiny-vision")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The preset as an export makes it, with all that it compares."""
    return export_model("tiny-vision", tmp_path_factory.mktemp("seeing") / "tiny-vision").path


@pytest.fixture(scope="module")
def model(bundle):
    return load(bundle)


@pytest.fixture(scope="module")
def asked():
    return read_questions(FOLDER / "evaluation.jsonl")


@pytest.fixture(scope="module")
def hard(asked):
    return choose([each for each in asked if each.skill in HARD], EACH)


@pytest.fixture(scope="module")
def module(source):
    """The module that training scores, with the stored weights."""
    filled = build_model(source.config, torch.float32)
    filled.load_state_dict({name: value.float() for name, value in source.weights().items()}, strict=False)
    return evaluation_module(filled, source.config)


def test_it_is_small_and_asked_enough(asked):
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 8e6
    assert len(asked) >= 500 and len({each.skill for each in asked}) == 8
    assert len({each.image for each in asked}) >= 60


def test_the_command_of_the_readme_sees_the_picture(bundle):
    line = ["run", str(bundle), "--image", str(SHAPES)]
    for question, answer in (
        ("What is left of the circle?", "a blue square"),
        ("What is below the circle?", "a green triangle"),
        ("What is above the square?", "nothing"),
        ("How many things are there?", "five"),
        ("Which digit is there?", "7"),
    ):
        result = CliRunner().invoke(cli, [*line, question])
        assert result.exit_code == 0 and result.stdout.strip().startswith(answer), (question, result.output)


def test_a_bundle_answers_held_out_questions(model, asked):
    found = evaluate(model, asked, limit=EACH)
    assert found.total.exact >= 0.9
    turned = np.random.default_rng(0).permutation(len(asked))
    others = [replace(each, image=asked[other].image) for each, other in zip(asked, turned, strict=True)]
    assert evaluate(model, others, limit=EACH).total.exact < 0.5  # negative control: the picture matters


PIXEL_FAULTS = {
    "height and width swapped": (Tiles, "values", lambda values: values.swapaxes(2, 3)),
    "order of tiles": (Tiles, "values", lambda values: values[[1, 0, *range(2, len(values))]]),
    "order of the patches of a tile": (Tiles, "values", lambda values: np.roll(values, 32, 3)),
    "blue for red": (Processor, "normalized", lambda values: values[::-1]),
}


@pytest.mark.parametrize("name", PIXEL_FAULTS)
def test_wrong_pixels_make_wrong_answers_and_no_bundle(bundle, source, hard, name):
    owner, method, changed = PIXEL_FAULTS[name]
    original = getattr(owner, method)
    with patch.object(owner, method, lambda *given: changed(original(*given))):
        assert evaluate(load(bundle), hard).total.exact < 0.7
        with pytest.raises(ExportError, match="does not make of a picture"):
            compare_pictures(source.folder, source.pictures)


def exchanged(blocks):
    blocks[1], blocks[2] = blocks[2], blocks[1]


MODULE_FAULTS = {
    "nothing": lambda module: None,
    "positions of patches turned round": lambda module: module.tower.position_embedding.weight.copy_(
        module.tower.position_embedding.weight.flip(0)
    ),
    "blocks of the text exchanged": lambda module: exchanged(module.blocks),
    "blocks of the tower exchanged": lambda module: exchanged(module.tower.blocks),
}


@pytest.mark.parametrize("name", MODULE_FAULTS)
def test_wrong_places_and_blocks_make_wrong_answers(module, hard, name):
    some = [replace(each, image=Image.open(str(each.image)).convert("RGB")) for each in hard]
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    faulty = copy.deepcopy(module)
    with torch.no_grad(), differentiable_ops():
        MODULE_FAULTS[name](faulty)
        right = tiny_vision.score(faulty, tokenizer, some)
    assert sum(right) / len(right) >= 0.85 if name == "nothing" else sum(right) / len(right) < 0.7


def test_an_export_refuses_exchanged_blocks(source):
    """transformers' own module over the same files is the other reader."""
    weights = dict(source.weights())
    compare_modules(source, weights)
    for name in [name for name in weights if name.startswith("tower.blocks.0.")]:
        other = name.replace("blocks.0", "blocks.1")
        weights[name], weights[other] = weights[other], weights[name]
    with pytest.raises(ExportError, match="does not compute what"):
        compare_modules(source, weights)
