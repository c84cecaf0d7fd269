"""The layer that drafts for tiny-llama: what training computes is what drafts are, and the folder gets nothing else."""

import json
import shutil

import pytest
import torch
from click.testing import CliRunner
from presets.differentiable import differentiable_ops
from presets.drafts import layer, own_texts, train_layer
from presets.packing import IGNORED, Tokens, pack
from presets.training import evaluation_module
from safetensors.torch import load_file
from tokenizers import Tokenizer

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.checkpoints.source import open_source

FOLDER = PRESETS / "tiny-llama"
LENGTH, DEPTH = 24, 3


@pytest.fixture(scope="module")
def module():
    """The preset with a layer of random weights, in float32."""
    _, config = train_layer.with_layer(FOLDER)
    return evaluation_module(train_layer.module_of(FOLDER, 0), config)


@pytest.fixture(scope="module")
def rows():
    """A row of two documents and padding."""
    random = torch.Generator().manual_seed(0)
    first, second = (torch.randint(3, 2000, (size,), generator=random).tolist() for size in (11, 9))
    return pack([Tokens(first, [*first[1:], IGNORED]), Tokens(second, [IGNORED, *second[2:], IGNORED])], LENGTH)


def drafts_one_by_one(module, text):
    """The states of drafts behind every token of a text, from runs of the layer over its cache: [depth, n, E]."""
    geometry, found = module.config.mtp.cache_geometry, []
    ids = torch.tensor([text])
    empty = geometry.by_layer([torch.zeros(tensor.shape(1, 0)) for tensor in geometry.tensors()])
    caches = module.config.cache_geometry
    none = caches.by_layer([torch.zeros(tensor.shape(1, 0)) for tensor in caches.tensors()])
    _, states, _ = module.forward_with_states(ids, torch.ones_like(ids), none)
    read = ids[:, 1:]
    _, predicted, [kept] = module.predict(read, torch.ones_like(read), states[:, :-1], empty)
    for place in range(len(text) - DEPTH):
        state, past, parts = predicted[:, place : place + 1], tuple(part[:, :, : place + 1] for part in kept), []
        parts.append(state[0, 0])
        for number in range(1, DEPTH):
            token = ids[:, place + 1 + number : place + 2 + number]
            mask = torch.ones(1, place + 1 + number, dtype=torch.int64)
            _, state, [past] = module.predict(token, mask, state, [past])
            parts.append(state[0, 0])
        found.append(torch.stack(parts))
    return torch.stack(found, 1)


def test_training_drafts_what_the_runtime_drafts(module, rows):
    """Training computes all drafts at once; a run over a cache computes the same states, token by token."""
    with torch.no_grad():
        with differentiable_ops():
            found = layer.drafted(module, rows, layer.body(module, rows)[0], DEPTH)
        for start, end in ((0, 11), (11, 20)):
            expected = drafts_one_by_one(module, rows.ids[0, start:end].tolist())
            mine = found[0, :, start : end - DEPTH]
            assert torch.allclose(mine, expected, atol=1e-4)
            assert not torch.allclose(mine[1:], found[0, :-1, start : end - DEPTH], atol=1e-2), "the depth shows"


def test_drafts_are_judged_where_the_model_writes(rows):
    """Token n of a draft behind place i is the token i + n + 1, of the same document, and one that is learned."""
    asked = layer.verified(rows, DEPTH)[0]
    for number in range(DEPTH):
        for place in range(LENGTH):
            target = place + number + 1
            same = target < LENGTH and rows.documents[0, place] == rows.documents[0, target] > 0
            assert asked[number, place] == bool(same and rows.targets[0, target] != IGNORED)
    assert asked.any(1).all()


def test_drafts_of_the_body_itself_are_all_accepted(module, rows, monkeypatch):
    """A layer that says what the body says is always right, and a random one never."""
    with torch.no_grad(), differentiable_ops():
        random = layer.accepted(module, rows, DEPTH)
        states, _ = layer.body(module, rows)
        right = torch.stack([states.roll(-1 - number, 1) for number in range(DEPTH)], 1)
        monkeypatch.setattr(layer, "drafted", lambda *_: right)
        perfect = layer.accepted(module, rows, DEPTH)
    assert perfect.tolist() == [int(perfect[0])] * (DEPTH + 1) and perfect[0] > 0
    assert random[0] == perfect[0] and random[DEPTH] == 0


def test_own_stories_are_greedy_and_end(monkeypatch, module):
    monkeypatch.setattr(own_texts, "BATCH", 4)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    found = own_texts.own_stories(module, tokenizer, 0, 48, 6, 0)
    assert len(found) == 6
    for each in found:
        begun = next(place for place, target in enumerate(each.targets) if target != IGNORED) + 1
        ids = torch.tensor([each.ids])
        with torch.no_grad():
            geometry = module.config.cache_geometry
            none = geometry.by_layer([torch.zeros(tensor.shape(1, 0)) for tensor in geometry.tensors()])
            logits, _ = module(ids, torch.ones_like(ids), none)
        assert logits[0, begun - 1 : -1].argmax(-1).tolist() == each.ids[begun:] == each.targets[begun - 1 : -1]
        assert 0 not in each.ids[begun:-1] and len(each.ids) <= 48


@pytest.fixture
def small(monkeypatch):
    """A training of a few seconds."""
    monkeypatch.setattr(train_layer, "ROWS", 1)
    monkeypatch.setattr(train_layer, "OWN_STORIES", 4)
    monkeypatch.setattr(train_layer, "TOLD", 2)
    monkeypatch.setattr(own_texts, "BATCH", 4)


def test_the_folder_gets_the_layer_and_keeps_the_rest(small, tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "preset")
    before = load_file(folder / "model.safetensors")
    for number in range(2):  # the second time, the layer is replaced
        line = ["--folder", folder, "--work", tmp_path / f"work{number}", "--steps", 2, "--seed", number]
        result = CliRunner().invoke(train_layer.main, [str(part) for part in line])
        assert result.exit_code == 0, result.output
    stored = load_file(folder / "model.safetensors")
    added = {name: tensor for name, tensor in stored.items() if name.startswith("mtp.")}
    kept = {name for name in before if not name.startswith("mtp.")}
    assert stored.keys() - added.keys() == kept and all(torch.equal(stored[name], before[name]) for name in kept)
    assert sum(tensor.numel() * tensor.element_size() for tensor in added.values()) < 1e6
    assert {tensor.dtype for tensor in added.values()} == {torch.bfloat16}
    page = (folder / "README.md").read_text()
    assert page.count("## The layer that drafts") == 1
    assert "python tools/presets/drafts/train_layer.py --steps 2 --seed 1\n" in page and "{" not in page
    assert json.loads((folder / "config.json").read_text()).items() >= train_layer.FIELDS.items()
    assert any(name.startswith("mtp.") for name in open_source(folder, mtp=True).weights())
