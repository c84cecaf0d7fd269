"""`locate` names the node that computes something else, and no other; on a clean graph it names none.

The faults are those of `faults.py`: each is planted into a copy of a clean bundle, and the suspects must be exactly the
nodes that the fault says. Where that is more than one, each of them really computes something else: a weight and its
bias both moved, a table that all layers read, an embedding that is also the head.
"""

import re
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from build_graph import build_graph
from faults import BELOW_FP16, FAULTS, mutable_config, plant, setting
from slow_rows import slow_unless

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import DecoderConfig
from edgeformer.errors import BundleError
from edgeformer.export.bundle.writer import GraphWriter
from edgeformer.export.lower import GraphJob
from edgeformer.export.lower.ort import rotary
from edgeformer.export.lower.ort.attention import attention as lower_ort
from edgeformer.export.parity.locate import cut_graph
from edgeformer.export.parity.locate import locator as locate_module
from edgeformer.export.parity.locate.locator import FLOOR, Locator, describe, locate
from edgeformer.export.parity.locate.node_values import NodeValues
from edgeformer.manifest.graph_forms import BundledGraph, BundledGraphs
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provenance, SpecialTokens
from edgeformer.manifest.plan import ExportPlan
from edgeformer.models import Decoder, model_constants
from edgeformer.models.model_spec import model_spec_of

FAULT = {fault.name: fault for fault in FAULTS}


ORT = ExportPlan()


def write_bundle(folder: Path, config: DecoderConfig, precision="fp32", target=ORT, weights=None) -> Manifest:
    """Export a model, with random weights of seed 1 by default; its graph, its weights and no more."""
    plan = replace(target, precision=precision, arithmetic=precision)
    job = GraphJob(model_spec=model_spec_of(config), weights=weights or RandomWeights(config, 1), plan=plan)
    graph, _ = build_graph(job.model_spec, job.weights, precision, job.lowering)
    writer = GraphWriter(folder, lambda what, part: None)
    writer.write(graph, "onnx/model.onnx")
    return Manifest(
        task="causal-lm", name="tiny", provenance=Provenance(source="random", random_weights=1),
        plan=plan,
        graphs=BundledGraphs(model=BundledGraph(file="onnx/model.onnx")), vocab_size=config.vocab_size,
        context_length=config.context_length, cache=config.cache_geometry, model=config,
        tokens=SpecialTokens(eos=(), bos=None, pad=None), files={}, weights=writer.weights, versions={}, parity=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def make_clean(tmp_path_factory):
    """Return a function that makes a clean bundle: folder, manifest, weights, and a locator with its references."""

    @cache
    def make(kind: str):
        folder = tmp_path_factory.mktemp(kind)
        config = mutable_config(tie_word_embeddings=kind != "free")
        manifest = write_bundle(folder, config, "fp16" if kind == "tied-fp16" else "fp32")
        weights = RandomWeights(config, 1)
        return folder, manifest, weights, Locator(manifest, model_spec_of(config), weights)

    return make


@pytest.fixture(params=["free", "tied", "tied-fp16"])
def clean(request, make_clean):
    return make_clean(request.param)


@pytest.fixture
def free(make_clean):
    return make_clean("free")


def find(fault_name: str, bundle, folder: Path):
    """Plant a fault and locate it."""
    path, manifest, weights, locator = bundle
    plant(FAULT[fault_name], path, folder, manifest, weights)
    return locator.locate(folder)


def nodes_of(folder: Path) -> list[str]:
    return [node.name for node in onnx.load(folder / "onnx/model.onnx", load_external_data=False).graph.node]


def only(found):
    """What was found about the only graph."""
    (findings,) = found.graphs
    return findings


def suspects(found) -> list[str]:
    return [suspect.node for suspect in found.suspects]


PLANTED = [
    (kind, fault.name)
    for kind in ("free", "tied", "tied-fp16")
    for fault in FAULTS
    if fault.kind != "config"
    and fault.fits(mutable_config(tie_word_embeddings=kind != "free"))
    and not (kind == "tied-fp16" and fault.name in BELOW_FP16)
]


@pytest.mark.parametrize(("kind", "name"), PLANTED)
def test_a_fault_is_found_in_exactly_the_wrong_nodes(make_clean, tmp_path, kind, name):
    bundle = make_clean(kind)
    found = find(name, bundle, tmp_path)
    expected = FAULT[name].expected(nodes_of(tmp_path), bundle[1].model)
    assert expected, "the fault expects no node of this graph"
    assert suspects(found) == expected, describe(found)
    assert found.first == found.suspects[0]
    assert not only(found).runtime_fault


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if fault.kind == "config"])
def test_a_graph_of_another_config_is_found_where_they_differ(free, tmp_path, name):
    found = find(name, free, tmp_path)
    assert suspects(found) == FAULT[name].expected(nodes_of(tmp_path), free[1].model), describe(found)


def test_there_are_faults_of_all_kinds_and_no_two_of_one_name():
    assert len(FAULT) == len(FAULTS) >= 30
    assert {fault.kind for fault in FAULTS} == {"config", "weights", "graph"}


def test_a_clean_graph_has_no_suspect(clean):
    folder, manifest, _, locator = clean
    found = locator.locate(folder)
    assert (found.first, found.suspects, found.differences) == (None, (), ())
    assert not only(found).runtime_fault
    assert max(only(found).blocks.values()) < FLOOR[manifest.plan.precision] / 5
    assert max(only(found).outputs.values()) < FLOOR[manifest.plan.precision]
    assert {"embedding", "blocks.0", "blocks.1", "blocks.2", "final_norm", "lengths"} <= only(found).blocks.keys()


CLEAN = {
    "attention decomposed": ({"head_dim": 12}, "fp32", ExportPlan()),
    "attention decomposed, float16": ({"head_dim": 12, "hidden_act": "gelu"}, "fp16", ExportPlan()),
    "rotation decomposed": ({"head_dim": 8, "num_key_value_heads": 1}, "fp32", ExportPlan()),
    "lowered for CUDA": ({"num_key_value_heads": 4, "attention_bias": False}, "fp32", ExportPlan(provider="cuda")),
    "a context of four": ({"max_position_embeddings": 4, "hidden_act": "relu"}, "fp32", ExportPlan()),
    "a context of one": ({"max_position_embeddings": 1, "rms_norm_eps": 1e-2}, "fp32", ExportPlan()),
    "standard, growing": ({}, "fp32", ExportPlan(ops="standard", cache_form="dynamic")),
    "standard, static, float16": ({"hidden_act": "gelu"}, "fp16", ExportPlan(ops="standard", cache_form="static")),
    "portable, growing": ({"head_dim": 12}, "fp32", ExportPlan(ops="portable", cache_form="dynamic")),
    "portable, static": ({}, "fp32", ExportPlan(ops="portable", cache_form="static")),
    "functions": ({}, "fp32", ExportPlan(ops="portable", cache_form="dynamic", functions=True)),
}


FAST = ("attention decomposed, float16", "a context of one", "standard, static, float16", "functions")


@pytest.mark.parametrize("name", slow_unless(FAST, CLEAN))
def test_clean_graphs_of_other_shapes_have_no_suspect(tmp_path, name):
    options, precision, target = CLEAN[name]
    manifest = write_bundle(tmp_path, mutable_config(num_hidden_layers=2, **options), precision, target)
    found = locate(tmp_path, manifest, model_spec_of(manifest.model), RandomWeights(manifest.model, 1))
    assert suspects(found) == [], describe(found)
    assert found.differences == ()
    assert max(only(found).blocks.values()) < FLOOR[precision] / 5


@pytest.mark.parametrize(
    ("target", "module", "op"),
    [
        (ExportPlan(ops="standard", cache_form="static"), "blocks.1.attention/", "Attention"),
        (ExportPlan(ops="portable", cache_form="dynamic", functions=True), "blocks.1.attention_norm/", "RMSNorm"),
    ],
    ids=["standard", "functions"],
)
def test_a_fault_in_another_op_set_is_found(tmp_path, target, module, op):
    manifest = write_bundle(tmp_path, mutable_config(num_hidden_layers=2), target=target)
    path = tmp_path / "onnx/model.onnx"
    model = onnx.load(path, load_external_data=False)
    (faulty,) = (each for each in model.graph.node if each.name.startswith(module) and each.op_type == op)
    if target.functions:  # the weight of the other norm
        faulty.input[1] = "blocks.1.feed_forward_norm.weight"
    else:
        next(each for each in faulty.attribute if each.name == "scale").f *= 1.01
    onnx.save(model, path)
    found = locate(tmp_path, manifest, model_spec_of(manifest.model), RandomWeights(manifest.model, 1))
    assert suspects(found) == [faulty.name], describe(found)


def test_reference_values_are_those_of_the_eager_decoder(free):
    """The same feeds through the torch module in float64: logits and caches of all valid positions."""
    _, manifest, weights, locator = free
    values = locator.graphs[0].values
    decoder = Decoder(manifest.model, torch.float64)
    decoder.load_state_dict({name: weights[name] for name in weights}, strict=False)
    for name, table in model_constants(manifest.model).items():
        module, _, which = name.rpartition(".")
        # Tables are stored in the graph's precision, and that is not the fault of a node.
        setattr(decoder.get_submodule(module), which, table.float().double())
    for place, feed in enumerate(values.feeds):
        caches = [
            tuple(torch.from_numpy(feed.inputs[f"past_key_values.{layer}.{part}"]) for part in ("key", "value"))
            for layer in range(3)
        ]
        with torch.no_grad():
            ids, mask = (torch.from_numpy(feed.inputs[name]) for name in ("input_ids", "attention_mask"))
            logits, presents = decoder(ids, mask, caches)
        pairs = {"logits": logits}
        for layer, (key, value) in enumerate(presents):
            pairs |= {f"present.{layer}.key": key, f"present.{layer}.value": value}
        for name, theirs in pairs.items():
            ours = values[name][place]
            assert ours.valid.any()
            np.testing.assert_allclose(ours.value[ours.valid], theirs.numpy()[ours.valid], rtol=0, atol=1e-7)


def test_an_epsilon_below_float16_rounding_is_a_difference(make_clean, tmp_path):
    found = find("eps of one norm", make_clean("tied-fp16"), tmp_path)
    assert found.first is None
    assert found.differences == (
        "blocks.1.feed_forward_norm/RMSNorm has epsilon 0.001 where a fresh lowering has 1e-06",
    )


@pytest.mark.parametrize(("precision", "head_dim", "factor"), [("fp32", 16, 30), ("fp16", 12, 300)])
def test_large_scores_are_no_fault(tmp_path, precision, head_dim, factor):
    """Softmax amplifies the rounding of large scores, and lets padding attend to one token, as if it were valid."""
    config = mutable_config(num_hidden_layers=2, vocab_size=31, hidden_size=32, intermediate_size=48, head_dim=head_dim)

    class Large(RandomWeights):
        def __getitem__(self, name):
            weight = super().__getitem__(name)
            if name == "embedding.weight":
                weight[:, 5] *= factor
            return weight * factor if "query" in name else weight

    weights = Large(config, 3)
    manifest = write_bundle(tmp_path, config, precision, weights=weights)
    found = locate(tmp_path, manifest, model_spec_of(config), weights)
    assert suspects(found) == [], describe(found)
    if precision == "fp16":
        assert max(only(found).blocks.values()) > FLOOR["fp16"]


def test_padding_and_unwritten_slots_are_not_compared(free):
    values = free[3].graphs[0].values
    prompt, chunk, step = values["present.1.key"]
    assert prompt.valid[:, 0, :, 0].tolist() == [[True] * 9, [True] * 4 + [False] * 5]
    assert chunk.valid.all()
    assert step.valid[:, 0, :, 0].tolist() == [[True] * 12, [True] * 6 + [False] * 6]
    assert values["logits"][0].valid[:, :, 0].tolist() == [[True] * 9, [True] * 4 + [False] * 5]


# The references must not come from the code that they judge.


def scale_doubled(monkeypatch):
    real = lower_ort._emit_attention

    def wrong(node, *lengths):
        node.attributes["scale"] = ir.AttrFloat32("scale", 0.5)
        real(node, *lengths)

    monkeypatch.setattr(lower_ort, "_emit_attention", wrong)


def keys_packed_last(monkeypatch):
    module = sys.modules["edgeformer.export.passes.pack_qkv"]
    real = module.join
    monkeypatch.setattr(module, "join", lambda name, parts: real(name, [parts[0], parts[2], parts[1]]))


def rotation_unturned(monkeypatch):
    real = rotary._rotary

    def wrong(emit, node):
        node.replace_input_with(3, node.inputs[2])  # cosines for sines
        return real(emit, node)

    monkeypatch.setattr(rotary, "_rotary", wrong)


@pytest.mark.parametrize(
    ("bug", "head_dim", "first"),
    [
        (scale_doubled, 16, "blocks.0.attention/GroupQueryAttention"),
        # A pass is judged where its work meets a canonical value again.
        (keys_packed_last, 16, "blocks.0.attention/GroupQueryAttention"),
        (rotation_unturned, 8, "blocks.0.attention/RotaryEmbedding"),
    ],
)
def test_a_bug_in_the_exporter_itself_is_found(tmp_path, monkeypatch, bug, head_dim, first):
    bug(monkeypatch)
    manifest = write_bundle(tmp_path, mutable_config(num_hidden_layers=1, head_dim=head_dim))
    found = locate(tmp_path, manifest, model_spec_of(manifest.model), RandomWeights(manifest.model, 1))
    assert found.first is not None
    assert found.first.node == first, describe(found)
    assert "are those of a fresh lowering: either what edgeformer emits is wrong, or onnxruntime's" in describe(found)


def test_a_suspect_says_what_it_is_and_who_made_it(free, tmp_path):
    first = find("eps of one norm", free, tmp_path).first
    assert first is not None
    assert replace(first, error=0.0) == locate_module.Suspect(
        graph="onnx/model.onnx",
        node="blocks.1.feed_forward_norm/RMSNorm",
        canonical="edgeformer::SkipRMSNorm",
        op="AddRMSNorm",
        error=0.0,
        limit=2e-6,
        block="blocks.1",
        made_by="emitted by lower/ort for edgeformer::SkipRMSNorm, fused by fuse_skip_norm",
        feed="step",
        difference="has epsilon 0.001 where a fresh lowering has 1e-06",
    )
    assert 1e-4 < first.error < 1e-2


MADE_BY = {
    "embedding/Gather": "captured from PyTorch",
    "blocks.0.attention_norm/RMSNorm": "emitted by lower/ort for edgeformer::RMSNorm",
    "blocks.0.attention.qkv/MatMul_0": "emitted by lower/ort for three of MatMul, packed by pack_qkv",
    "blocks.0.attention/GroupQueryAttention": "emitted by lower/ort for edgeformer::GroupQueryAttention, "
    "RoPE folded in by fold_rotary, packed by pack_qkv",
    "blocks.0.feed_forward.down/MatMul": "emitted by lower/ort for MatMul, weight transposed by transpose_weights",
    "lengths/Sub_3": "emitted by lower/ort for the lengths that attention reads",
    "head/MatMul": "emitted by lower/ort for MatMul",
}


def values_of(config):
    model_spec = model_spec_of(config)
    return NodeValues(GraphJob(model_spec=model_spec, weights=RandomWeights(config, 1)), *model_spec.graphs)


def test_every_node_has_an_origin():
    config = mutable_config(num_hidden_layers=1, tie_word_embeddings=True)
    values = values_of(config)
    assert {name: values.origins[name].made_by for name in MADE_BY} == MADE_BY
    config = mutable_config(num_hidden_layers=1, head_dim=12)
    origins = values_of(config).origins
    scores = [each for name, each in origins.items() if name.startswith("blocks.0.attention/GroupQueryAttention/Soft")]
    decomposed = "decomposed by graph/function_bodies for edgeformer::GroupQueryAttention"
    assert [each.made_by for each in scores] == [decomposed]


DESCRIPTIONS = {
    "residual reads the norm": (
        "blocks.1.feed_forward_norm/RMSNorm (AddRMSNorm, emitted by lower/ort for "
        "edgeformer::SkipRMSNorm, fused by fuse_skip_norm) is the first wrong node: off by # on the #, "
        "where rounding explains 2.0e-06.\n"
        "  It reads output 0 of blocks.1.attention_norm/RMSNorm where a fresh lowering reads output 1 of "
        "blocks.1.attention_norm/RMSNorm."
    ),
    "lengths one too long": (
        "lengths/Sub_3 (Sub, emitted by lower/ort for the lengths that attention reads) is the first wrong node: "
        "off by # on the #, where integers must be exact.\n"
        "  It reads the constant 0 where a fresh lowering reads the constant 1."
    ),
    "an embedding of no feed zeroed": (
        "embedding/Gather (Gather, captured from PyTorch) is the first wrong node: its weights are off by #, "
        "where rounding explains 1.2e-07.\n"
        "  It has another embedding.weight than was given, off by #."
    ),
    "mask ignored": (
        "lengths/ReduceSum_1 (ReduceSum, emitted by lower/ort for the lengths that attention reads) is the first "
        "wrong node: off by # on the #, where integers must be exact.\n"
        "  It reads output 0 of planted/Cast where a fresh lowering reads attention_mask.\n"
        "Otherwise different from a fresh lowering:\n"
        "  planted/Equal (Equal) is not one of its nodes\n"
        "  planted/Cast (Cast) is not one of its nodes"
    ),
    "present key and value exchanged": (
        "blocks.1.attention/GroupQueryAttention (CachedAttention, emitted by lower/ort for "
        "edgeformer::GroupQueryAttention, RoPE folded in by fold_rotary, packed by pack_qkv) is the first wrong "
        "node: off by # on the #, where rounding explains 2.0e-06.\n"
        "  It makes present.1.value where a fresh lowering makes present.1.key; makes present.1.key where a fresh "
        "lowering makes present.1.value."
    ),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_what_was_found_in_words(free, tmp_path, name):
    text = re.sub(r"off by \d\.\de[+-]\d\d", "off by #", describe(find(name, free, tmp_path)))
    text = re.sub(r"on the (prompt|chunk|step)", "on the #", text)
    assert text == DESCRIPTIONS[name]


def test_a_node_that_onnxruntime_refuses_is_found_by_halving(free, tmp_path):
    found = find("heads regrouped", free, tmp_path)
    assert found.first is not None
    assert np.isnan(found.first.error)
    assert np.isnan(only(found).blocks["blocks.1"])
    assert only(found).blocks["blocks.2"] < 1e-5
    assert "is the first wrong node: it gives no numbers.\n  It cannot run (Input 'past_key'" in describe(found)


def test_further_suspects_are_named_and_then_counted(free, tmp_path):
    text = describe(find("one layer repeated", free, tmp_path))
    assert "Also wrong: blocks.1.attention.qkv/MatMul_0, blocks.1.attention.qkv/Add_1, " in text
    assert text.endswith("blocks.1.feed_forward_norm/RMSNorm, … and 6 more.")


def test_a_clean_graph_in_words(free):
    folder, *_, locator = free
    text = describe(locator.locate(folder))
    assert text.startswith("Every node by itself computes what it should; the largest error is ")
    assert "The outputs of the graph as it is are off by " in text
    assert "The outputs of the graph optimised are off by " in text


def test_a_difference_without_effect_is_told_and_is_no_suspect(free, tmp_path):
    path, *_, locator = free
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    edit(tmp_path, lambda graph: setting("final_norm/*", "epsilon", 1.01e-6)(graph, tmp_path))
    found = locator.locate(tmp_path)
    assert found.first is None
    assert found.differences == ("final_norm/RMSNorm has epsilon 1.01e-06 where a fresh lowering has 1e-06",)
    assert "different from a fresh lowering:\n  final_norm/RMSNorm has epsilon 1.01e-06 where" in describe(found)


def test_a_fault_of_onnxruntime_is_not_blamed_on_the_graph(free, monkeypatch):
    """The optimiser is played by one that puts Tanh in the place of a Sigmoid."""
    folder, *_, locator = free
    real = cut_graph.open_model

    def open_model(model, folder, provider, *, optimise, save_as=None):
        if optimise:
            wrong = onnx.ModelProto()
            wrong.CopyFrom(model)
            FAULT["Tanh for Sigmoid"].apply(wrong.graph, folder)
            model = wrong
        return real(model, folder, provider, optimise=optimise, save_as=save_as)

    monkeypatch.setattr(cut_graph, "open_model", open_model)
    monkeypatch.setattr(locate_module, "open_model", open_model)
    found = locator.locate(folder)
    assert only(found).runtime_fault
    assert suspects(found) == ["blocks.1.feed_forward/Sigmoid"]
    assert found.suspects[0].op == "Tanh"
    text = describe(found)
    assert text.startswith("The graph is right (its outputs are off by ")
    assert "this is a fault of onnxruntime. Run with its optimisations off (ORT_DISABLE_ALL)" in text
    assert "It computes the right values as long as onnxruntime does not optimise the graph." in text


def test_the_optimised_form_of_a_clean_graph_has_no_suspect(clean, monkeypatch):
    """As if the optimiser were to blame, but is not: fused nodes are judged, and are in line."""
    folder, manifest, _, locator = clean
    monkeypatch.setattr(locate_module, "ROUNDING", -1.0)
    monkeypatch.setattr(locator.graphs[0], "_floor", 0.0)
    monkeypatch.setattr(locate_module.GraphLocator, "_suspects", lambda *given: [])
    found = locator.locate(folder)
    assert only(found).runtime_fault  # made so
    monkeypatch.undo()
    assert max(suspect.error for suspect in found.suspects) < FLOOR[manifest.plan.precision] / 5
    if manifest.plan.precision == "fp32":
        assert any("QuickGelu" in suspect.op for suspect in found.suspects)


def test_a_graph_that_somebody_else_named_is_refused(free, tmp_path):
    path, *_, locator = free
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)

    def rename(graph):
        for number, each in enumerate(graph.node):
            each.name = f"node_{number}"

    edit(tmp_path, rename)
    with pytest.raises(
        BundleError,
        match=r"has 0 of the \d+ nodes that edgeformer gives this model, by their names: something else made or "
        r"rewrote it, .* make that with: edgeformer export$",
    ):
        locator.locate(tmp_path)


def test_a_graph_with_inputs_of_its_own_is_refused(free, tmp_path):
    path, *_, locator = free
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    edit(tmp_path, lambda graph: graph.input.add(name="position_ids"))
    with pytest.raises(
        BundleError, match="has inputs that edgeformer's graph does not have: position_ids. Export it again."
    ):
        locator.locate(tmp_path)


def test_a_file_that_is_no_graph_is_refused(free, tmp_path):
    *_, locator = free
    with pytest.raises(BundleError, match="cannot be read as an ONNX graph"):
        locator.locate(tmp_path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/model.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match="cannot be read as an ONNX graph"):
        locator.locate(tmp_path)


def edit(folder: Path, change) -> None:
    path = folder / "onnx/model.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())
