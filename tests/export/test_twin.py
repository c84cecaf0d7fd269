"""Exports for CUDA are verified without a GPU: by float32 twins, by their structure, and by the list of kernels."""

import json
from dataclasses import replace

import onnx
import onnxruntime
import pytest
from onnx import helper

from edgeformer.errors import ParityError
from edgeformer.export import export_model
from edgeformer.export.importers.opened_bundle import open_subject
from edgeformer.export.parity import twin, verify
from edgeformer.export.parity.certificate.words import paragraph
from edgeformer.export.parity.twin import structure

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="2026-11-24: with CUDA, graphs for CUDA are verified by themselves",
)

GRAPH = "onnx/model.onnx"


@pytest.fixture(scope="module")
def exported(make_llama, tmp_path_factory):
    """A result of an export for CUDA in float16."""
    return export_model(
        make_llama(num_hidden_layers=2), tmp_path_factory.mktemp("cuda") / "b", precision="fp16", provider="cuda"
    )


def test_an_export_for_cuda_is_verified_by_its_twin(exported):
    report = exported.report
    assert report.passed
    assert report.environment["provider"] == "cpu, float32 twins of the graphs for CUDA"
    assert (report.precision, report.hashes) == ("fp16", exported.manifest.graph_hashes())
    assert exported.manifest.certifies(exported.path)
    found = {check.name: check.value for check in report.checks if check.name.startswith("twin")}
    assert found == {"twin: other nodes": 0.0, "twin: no CUDA kernel": 0.0}
    # Limits are those of float32, which float16 would be far beyond.
    assert 0 < max(error for curve in report.curves for error in curve.graph) < 1e-5


def test_the_report_says_what_was_not_run(exported):
    said = "Kernels of CUDA and the rounding of half precision were not run"
    assert said in exported.report.describe()
    assert said in paragraph(exported.report)
    assert "Its parity is certified" not in paragraph(exported.report)
    assert said in (exported.path / "README.md").read_text()
    assert said in (exported.path / "parity/report.html").read_text()
    assert said in json.loads((exported.path / "parity/report.json").read_text())["environment"]["cuda"]


@pytest.fixture(scope="module")
def pair(exported, tmp_path_factory):
    """The bundle and its twin as subjects of verification."""
    opened = open_subject(exported.path)
    return opened, twin.write_twin(opened, tmp_path_factory.mktemp("twin"), lambda what, part: None)


def checks_after(pair, change):
    """The checks of a bundle's own files, after a change of its graph."""
    opened, made = pair
    file = opened.folder / GRAPH
    original = file.read_bytes()
    model = onnx.load(file, load_external_data=False)
    change(model.graph)
    onnx.save(model, file)
    try:
        return twin._same_nodes(opened, made), twin._kernels(opened)
    finally:
        file.write_bytes(original)


def test_a_node_with_another_attribute_or_input_is_found(pair):
    def window(graph):
        node = next(node for node in graph.node if node.op_type == "GroupQueryAttention")
        next(each for each in node.attribute if each.name == "local_window_size").i = 3

    def other_input(graph):
        add = [node for node in graph.node if node.op_type == "Mul"][-1]
        add.input[0] = add.input[1]

    def scale(graph):
        node = next(node for node in graph.node if node.op_type == "GroupQueryAttention")
        next(each for each in node.attribute if each.name == "scale").f *= 1.01

    assert [check.passed for check in checks_after(pair, lambda graph: None)] == [True, True]
    assert [check.value for check in checks_after(pair, window)] == [1.0, 0.0]
    assert [check.value for check in checks_after(pair, scale)] == [1.0, 0.0]
    same, kernels = checks_after(pair, other_input)
    assert same.value >= 1
    assert kernels.passed


def test_a_node_without_a_kernel_is_found(pair):
    def hardmax(graph):
        place, node = next((place, node) for place, node in enumerate(graph.node) if node.op_type == "MatMul")
        graph.node.insert(place, helper.make_node("Hardmax", [node.input[0]], ["planted"], name="planted"))
        node.input[0] = "planted"

    same, kernels = checks_after(pair, hardmax)
    assert not same.passed
    assert "Hardmax planted runs on the CPU, inside a layer" in kernels.what
    assert not kernels.passed


def test_a_wrong_twin_fails_the_export(make_llama, tmp_path, monkeypatch):
    """The twin is judged like any graph: another model's weights are noticed."""
    write = twin.write_twin

    def wrong(subject, folder, progress):
        made = write(subject, folder, progress)
        doubled = {name: 2 * weight if "down" in name else weight for name, weight in subject.weights.items()}
        return replace(made, weights=doubled)

    monkeypatch.setattr(twin, "write_twin", wrong)
    with pytest.raises(ParityError, match="the exported graph does not compute what PyTorch computes"):
        export_model(make_llama(num_hidden_layers=1), tmp_path / "b", precision="fp16", provider="cuda")


def test_casts_are_no_part_of_the_structure():
    cast = helper.make_node("Cast", ["x"], ["wide"], to=1)
    last = [helper.make_node("Relu", [name], ["y"]) for name in ("wide", "x")]
    value = [helper.make_tensor_value_info("x", 10, [1])]
    with_cast, without = (
        structure(helper.make_model(helper.make_graph(nodes, "g", value, []))) for nodes in ([cast, last[0]], [last[1]])
    )
    nodes = [("", "Relu", (), ("x",)), ("", "outputs", (), ())]
    assert with_cast == without == [("", "types", (), ()), *nodes]


@pytest.mark.parametrize(
    ("preset", "precision"),
    [
        ("tiny-embed", "fp16"),
        pytest.param("tiny-llama", "fp32", marks=pytest.mark.slow),
        pytest.param("tiny-llama", "int4", marks=pytest.mark.slow),
        pytest.param("tiny-llama", "int8", marks=pytest.mark.slow),
        ("tiny-translate", "fp16"),
        pytest.param("tiny-translate", "fp32", marks=pytest.mark.slow),
    ],
)
def test_presets(preset, precision, tmp_path):
    result = export_model(preset, tmp_path / "bundle", precision=precision, provider="cuda")
    assert result.report.passed
    assert "cuda" in result.report.environment
    if precision == "int4":
        assert verify(result.path).passed
