"""Experts of a checkpoint in every layout: each with tensors of its own, or all in fused ones, transposed or not."""

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from op_set_kinds import expert, experts, routed
from safetensors.torch import save_file

import edgeformer
from edgeformer.checkpoints.expert_weights import FirstOf, LazyWeights, read_expert
from edgeformer.checkpoints.weights import CheckpointWeights, RandomWeights
from edgeformer.errors import WeightsError
from edgeformer.export.graph.tensors import StreamedTensor, TensorSource, interleave
from edgeformer.families import load_family
from edgeformer.families._family import Packed

CONFIG = routed(experts({"bias": True}, expert(bias=True), count=3))
PREFIX = "blocks.0.feed_forward.experts"
LAYER = "model.layers.0.mlp.experts"
PLACE = "model.layers.*.mlp.experts"


def fused(layout):
    return {f"{PREFIX.replace('0', '*')}.{name}.weight": Packed(f"{PLACE}.gate_up_proj", part, layout)
            for part, name in enumerate(("gate", "up"))}  # fmt: skip


def biases(layout):
    return {f"{PREFIX.replace('0', '*')}.{name}.bias": Packed(f"{PLACE}.gate_up_proj_bias", part, layout)
            for part, name in enumerate(("gate", "up"))}  # fmt: skip


OWN = {
    f"{PREFIX.replace('0', '*')}.{name}.{last}": f"{PLACE}.#.{name}_proj.{last}"
    for name in ("gate", "up", "down")
    for last in ("weight", "bias")
}
DOWN = {f"{PREFIX.replace('0', '*')}.down.weight": f"{PLACE}.down_proj"}
LAYOUTS = {
    "own": (OWN, ()),
    "fused": (OWN | fused("experts") | DOWN | biases("experts"), ()),
    "fused, transposed": (OWN | fused("experts") | DOWN | biases("experts"), ("*experts*_proj",)),
    "alternating": (OWN | fused("alternating") | DOWN | biases("alternating"), ()),
    "alternating, transposed": (OWN | fused("alternating") | DOWN | biases("alternating"), ("*experts*_proj",)),
}


def stored(layout, given):
    """The tensors of a checkpoint of this layout, by hand; given: gate, up and down, weights and biases."""
    tensors = {}
    for name in ("gate", "up", "down"):
        for last in ("weight", "bias"):
            for index, each in enumerate(given[f"{PREFIX}.{name}.{last}"]):
                tensors[f"{LAYER}.{index}.{name}_proj.{last}"] = each.clone()
    if layout == "own":
        return tensors
    tensors = {name: each for name, each in tensors.items() if name.endswith("down_proj.bias")}
    for last, name in (("weight", "gate_up_proj"), ("bias", "gate_up_proj_bias")):
        parts = [given[f"{PREFIX}.{each}.{last}"] for each in ("gate", "up")]
        alternating = layout.startswith("alternating")
        tensors[f"{LAYER}.{name}"] = torch.stack(parts, 2).flatten(1, 2) if alternating else torch.cat(parts, 1)
    tensors[f"{LAYER}.down_proj"] = given[f"{PREFIX}.down.weight"]
    for name in ("gate_up_proj", "down_proj"):
        if "transposed" in layout:
            tensors[f"{LAYER}.{name}"] = tensors[f"{LAYER}.{name}"].transpose(1, 2)
    return {name: each.contiguous() for name, each in tensors.items()}


def checkpoint(layout, folder):
    """Weights as they were given, those of the rest of the model by the names of Mixtral, and the open checkpoint."""
    given = dict(RandomWeights(CONFIG, 0))
    own, transposed = LAYOUTS[layout]
    family = load_family("mixtral")
    family = replace(family, tensors={**family.tensors, **own}, transposed=transposed)
    others = {name: each for name, each in given.items() if not name.startswith(PREFIX)}
    places = family.places(others)
    tensors = {places[name].tensor: each.contiguous() for name, each in others.items()} | stored(layout, given)
    save_file(tensors, folder / "model.safetensors")
    return given, family, folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read(layout, tmp_path):
    given, family, folder = checkpoint(layout, tmp_path)
    weights = CheckpointWeights(folder, family, CONFIG)
    for name, expected in given.items():
        assert torch.equal(weights[name], expected), name
        if name.startswith(PREFIX):
            for index in range(3):
                assert torch.equal(read_expert(weights, name, index), expected[index]), name


def test_another_layout_is_another_model(tmp_path):
    given, family, folder = checkpoint("fused", tmp_path)
    wrong = replace(family, tensors={**family.tensors, **LAYOUTS["alternating"][0]})
    weights = CheckpointWeights(folder, wrong, CONFIG)
    assert not torch.equal(weights[f"{PREFIX}.gate.weight"], given[f"{PREFIX}.gate.weight"])


def test_a_checkpoint_may_have_either_of_two_layouts(tmp_path):
    for layout in ("own", "fused"):
        folder = tmp_path / layout
        folder.mkdir()
        given, family, _ = checkpoint(layout, folder)
        either = {name: (OWN[name], place) for name, place in (fused("experts") | DOWN | biases("experts")).items()}
        weights = CheckpointWeights(folder, replace(family, tensors={**family.tensors, **OWN, **either}), CONFIG)
        assert torch.equal(weights[f"{PREFIX}.up.weight"], given[f"{PREFIX}.up.weight"])


def test_missing_and_misshapen_experts_are_named(tmp_path):
    _, family, folder = checkpoint("own", tmp_path)
    with pytest.raises(WeightsError, match=r"missing: model\.layers\.0\.mlp\.experts\.3\.gate_proj\.weight \[24, 32\]"):
        CheckpointWeights(folder, family, routed(experts({"bias": True}, expert(bias=True), count=4)))
    (tmp_path / "fused").mkdir()
    _, family, folder = checkpoint("fused, transposed", tmp_path / "fused")
    with pytest.raises(WeightsError, match=r"gate_up_proj is \[3, 32, 48\], and the config implies \[3, 48, 32\]"):
        CheckpointWeights(folder, replace(family, transposed=()), CONFIG)


class OneByOne(dict):
    """Weights that refuse to be read as a whole."""

    def __getitem__(self, name):
        raise AssertionError(f"{name} was read as a whole")

    def read_expert(self, name, expert):
        return super().__getitem__(name)[expert]


def test_large_stacks_are_written_expert_by_expert(monkeypatch):
    monkeypatch.setattr("edgeformer.checkpoints.expert_weights.LARGE", 10)
    given = {name: torch.randn(3, 4, 5) for name in ("gate", "up")}
    tensors = [
        StreamedTensor(name, ir.DataType.FLOAT, ir.Shape([3, 4, 5]), TensorSource((name,)), OneByOne(given))
        for name in given
    ]
    joined = interleave("gate_up", tensors)
    chunks = list(joined.chunks())
    assert [tuple(chunk.shape) for chunk in chunks] == [(8, 5)] * 3
    assert torch.equal(torch.stack(chunks), joined.of(given).read())
    assert torch.equal(torch.stack(list(tensors[1].chunks())), given["up"])


class OneExpert(LazyWeights):
    """Weights of which nothing may be read but one expert."""

    def __getitem__(self, name):
        raise AssertionError(f"the whole of {name} is read")

    def read_expert(self, name, expert):
        return torch.full((2,), float(expert))

    def __iter__(self):
        return iter(["experts"])

    def __len__(self):
        return 1


def test_finding_the_weights_that_have_an_expert_reads_nothing():
    """`in` of a Mapping reads the tensor: every expert was read for each one of a layer."""
    assert read_expert(FirstOf({"bias": torch.zeros(1)}, OneExpert()), "experts", 3).tolist() == [3.0, 3.0]
    assert "gate" not in OneExpert()


def test_weights_read_on_demand_are_found_without_reading():
    root = Path(edgeformer.__file__).parent.parent
    files = [path for room in ("edgeformer", "export", "runtime") for path in (root / room).rglob("*.py")]
    assert len(files) > 200
    found = [path.name for path in files if "(Mapping[str, Tensor])" in path.read_text(encoding="utf-8")]
    assert found == ["expert_weights.py"]
