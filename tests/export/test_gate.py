"""The parity gate turns red for single faults, and stays green without one.

Each fault is exported as if it were right (no check on export), then verified against the true model. Faults in config
and weights go through the whole exporter; faults in the graph are made in the finished file.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from build_graph import build_graph

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import DecoderConfig
from edgeformer.errors import BundleError
from edgeformer.export import export_model
from edgeformer.export.bundle.writer import GraphWriter
from edgeformer.export.parity import verify_graph
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import vector_errors
from edgeformer.export.parity.judge import Judge, Piece
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU
from edgeformer.models.model_spec import model_spec_of


@pytest.fixture(scope="module")
def truth(make_llama, tmp_path_factory):
    """A bundle of a Llama with 4 heads over 2 key-value heads, its manifest and its weights."""
    folder = make_llama(num_hidden_layers=2)
    path = export_model(folder, tmp_path_factory.mktemp("truth") / "bundle", verify=None).path
    manifest = Manifest.read(path)
    return path, manifest, RandomWeights(manifest.model, seed=1)


def export_as(config: DecoderConfig, weights: Mapping[str, torch.Tensor], folder) -> None:
    """Write a graph of any config and weights to folder/onnx/model.onnx."""
    graph, _ = build_graph(model_spec_of(config), weights)
    GraphWriter(folder, lambda what, part: None).write(graph, "onnx/model.onnx")


def with_blocks(config: DecoderConfig, **attention) -> DecoderConfig:
    blocks = tuple(replace(block, attention=replace(block.attention, **attention)) for block in config.blocks)
    return replace(config, blocks=blocks)


def wrong_eps(config, weights):
    norm = replace(config.final_norm, eps=config.final_norm.eps * 10)
    return replace(config, blocks=tuple(replace(block, norm=norm) for block in config.blocks)), weights


def wrong_final_eps(config, weights):
    return replace(config, final_norm=replace(config.final_norm, eps=0.001)), weights


def interleaved_rotation(config, weights):
    return with_blocks(config, rotary=replace(config.blocks[0].attention.rotary, interleaved=True)), weights


def wrong_rotation_base(config, weights):
    return with_blocks(config, rotary=replace(config.blocks[0].attention.rotary, base=10001.0)), weights


def missing_scale(config, weights):
    return with_blocks(config, scale=1.0), weights


def swapped_key_value_heads(config, weights):
    width = config.blocks[0].attention.head_dim
    swapped = {name: weights[name].roll(width, 0) if "attention.key" in name else weights[name] for name in weights}
    return config, swapped


def swapped_gate_and_up(config, weights):
    names = {name: name.replace("gate", "swap").replace("up", "gate").replace("swap", "up") for name in weights}
    return config, {name: weights[names[name]] for name in weights}


def one_weight_of_one_layer_transposed(config, weights):
    name = "blocks.1.attention.query.weight"
    return config, {**{each: weights[each] for each in weights}, name: weights[name].t().contiguous()}


def activation_of_another_kind(config, weights):
    blocks = (replace(config.blocks[0], feed_forward=replace(config.blocks[0].feed_forward, activation="gelu")),)
    return replace(config, blocks=blocks + config.blocks[1:]), weights


MODEL_FAULTS = [
    wrong_eps,
    wrong_final_eps,
    interleaved_rotation,
    wrong_rotation_base,
    missing_scale,
    swapped_key_value_heads,
    swapped_gate_and_up,
    one_weight_of_one_layer_transposed,
    activation_of_another_kind,
]


def test_the_true_graph_passes(truth, tmp_path):
    _, manifest, weights = truth
    export_as(manifest.model, weights, tmp_path)
    report = verify_graph(tmp_path, manifest, model_spec_of(manifest.model), weights)
    assert report.passed, report.describe()


EVERY_RUN = {"prefill", "decode", "steps", "chunks", "batch of 3"}


def red_runs(report):
    """The ways of feeding in which some figure is beyond its limit."""
    return {check.name.split(":")[0] for check in report.failures()}


@pytest.mark.parametrize("fault", MODEL_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_model_shows_in_every_run(truth, tmp_path, fault):
    _, manifest, weights = truth
    export_as(*fault(manifest.model, weights), tmp_path)
    report = verify_graph(tmp_path, manifest, model_spec_of(manifest.model), weights)
    assert red_runs(report) >= EVERY_RUN, report.describe()


def positions_off_by_one(graph):
    """seqlens_k counts a token too many: every step writes and turns one position too far."""
    for node in graph.node:
        if node.name.startswith("lengths/Sub"):
            node.op_type, node.input[1] = "Add", zero(graph)


def residual_of_one_layer_dropped(graph):
    for node in graph.node:
        if node.name == "blocks.1.feed_forward_norm/RMSNorm":
            node.input[0] = node.input[1]


def cache_of_another_layer(graph):
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == "past_key_values.1.value":
                node.input[index] = "past_key_values.0.value"


def mask_ignored(graph):
    """Every row counts as long as the longest."""
    for node in graph.node:
        if node.name.startswith("lengths/ReduceSum"):
            ones = onnx.helper.make_node("Equal", ["attention_mask", "attention_mask"], ["every"])
            cast = onnx.helper.make_node("Cast", ["every"], ["all_ones"], to=onnx.TensorProto.INT64)
            node.input[0] = "all_ones"
            for place, added in enumerate((ones, cast)):
                graph.node.insert(place, added)
            return


def zero(graph):
    graph.initializer.append(onnx.helper.make_tensor("zero", onnx.TensorProto.INT64, [], [0]))
    return "zero"


# Fault → the checks that must see it; a prompt in one run cannot show a fault of later steps.
GRAPH_FAULTS = {
    positions_off_by_one: {"decode", "steps", "chunks", "batch of 3"},
    residual_of_one_layer_dropped: EVERY_RUN,
    cache_of_another_layer: {"decode", "steps", "chunks", "batch of 3"},
    mask_ignored: {"batch of 3"},
}


@pytest.mark.parametrize("fault", GRAPH_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_graph_fails_the_checks_that_can_see_it(truth, tmp_path, fault):
    _, manifest, weights = truth
    export_as(manifest.model, weights, tmp_path)
    path = tmp_path / "onnx" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    before = model.SerializeToString(deterministic=True)
    fault(model.graph)
    assert model.SerializeToString(deterministic=True) != before, "the fault found nothing to change"
    path.write_bytes(model.SerializeToString())
    report = verify_graph(tmp_path, manifest, model_spec_of(manifest.model), weights)
    assert red_runs(report) >= GRAPH_FAULTS[fault], report.describe()


def test_a_graph_that_onnxruntime_refuses_to_run_has_not_passed(truth, tmp_path):
    _, manifest, weights = truth
    export_as(manifest.model, weights, tmp_path)
    path = tmp_path / "onnx" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        if node.name.startswith("lengths/Sub"):
            node.op_type, node.input[1] = "Add", "lots"
    model.graph.initializer.append(onnx.helper.make_tensor("lots", onnx.TensorProto.INT64, [], [1000]))
    path.write_bytes(model.SerializeToString())
    report = verify_graph(tmp_path, manifest, model_spec_of(manifest.model), weights)
    assert red_runs(report) == {"run"}
    assert "seqlens_k" in report.describe()


def test_an_export_that_fails_the_gate_leaves_nothing(make_llama, tmp_path, monkeypatch):
    from edgeformer.errors import ParityError
    from edgeformer.export.parity import judge, tolerances

    impossible = replace(tolerances.LIMITS["median ratio"], floor={"fp32": 0.0, "fp16": 0.0})
    monkeypatch.setitem(tolerances.LIMITS, "median ratio", impossible)
    monkeypatch.setattr(judge, "RATIOS", ())
    with pytest.raises(
        ParityError, match=r"(?s)does not compute what PyTorch computes.*FAIL decode: median ratio.*No bundle was made"
    ):
        export_model(make_llama(num_hidden_layers=1), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_vectors_may_err_as_much_as_a_long_sum():
    random, products = np.random.default_rng(0), 8664  # of a projector of 19 × 19 patches of 24 numbers
    pieces = []
    for _ in range(8):
        terms = random.standard_normal((40, products), np.float32)
        exact = terms.astype(np.float64).sum(-1)[None]
        one_by_one = np.add.accumulate(terms, axis=-1)[None, :, -1]
        pieces.append(Piece(one_by_one, vector_errors(terms.sum(-1)[None], exact), exact))

    def failed(wrong, **options):
        judge = Judge("fp32")
        judge.vectors("tower", "sums", (replace(each, graph=wrong(each)) for each in pieces), few=True, **options)
        return {check.name.removeprefix("tower: ") for check in judge.checks if not check.passed}

    figures = {"worst ratio", "max error", "nmse"}
    assert failed(lambda piece: piece.graph, longest_sum=products) == set()
    assert failed(lambda piece: piece.graph) == figures
    # sums that are 2.5 times as far off, and values that differ by 1e-5
    farther = failed(lambda piece: 2.5 * piece.graph - 1.5 * piece.expected, longest_sum=products)
    assert farther == figures - {"max error"}
    assert failed(lambda piece: piece.graph * (1 + 1e-5), longest_sum=products) == figures


def test_the_worst_position_may_err_as_a_norm_does():
    """onnxruntime's SkipLayerNormalization adds the squares of a vector one after another."""
    numbers = np.random.default_rng(0).standard_normal((400, 768), np.float32)
    exact = numbers.astype(np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    mean, square = (np.add.accumulate(each, axis=-1)[:, -1:] / np.float32(768) for each in (numbers, numbers**2))
    one_by_one = (numbers - mean) / np.sqrt(square - mean**2 + np.float32(1e-5))
    assert one_by_one.dtype == np.float32
    eager = torch.nn.functional.layer_norm(torch.from_numpy(numbers), (768,)).numpy()

    def failed(graph, **options):
        judge = Judge("fp32")
        judge.vectors("text", "states", [Piece(graph, vector_errors(eager, exact), exact)], **options)
        return {check.name.removeprefix("text: ") for check in judge.checks if not check.passed}

    assert failed(one_by_one) >= {"worst ratio"}
    assert "worst ratio" not in failed(one_by_one, norm_size=768)
    assert "worst ratio" in failed(2.5 * one_by_one - 1.5 * exact, norm_size=768)
    one_wrong = eager.copy()
    one_wrong[7] *= 1 + 5e-6  # as an eps of 2e-5 instead of 1e-5 does
    assert failed(one_wrong) >= {"worst ratio"} and failed(one_wrong, norm_size=768) >= {"worst ratio"}


def test_a_graph_without_the_cache_of_a_layer_is_refused(llama_bundle):
    """A verification makes a failed check of this error."""
    session = SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name="input_ids")], get_outputs=list)
    graph = Graph(session, Manifest.read(llama_bundle), CPU)
    with pytest.raises(BundleError, match=r"has no input past_key_values\.0\.key"):
        graph.decoder(1, 8)
