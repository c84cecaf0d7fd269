"""`edgeformer optimize` stores the weights of kernels as they read them; elsewhere the bundle's own graph runs."""

import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from test_mat_mul_n_bits import random_weights

from edgeformer.errors import BundleError, ParityError
from edgeformer.export import export_model, verify
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load
from edgeformer.runtime.measure import prepack
from edgeformer.runtime.sessions import kernels
from edgeformer.runtime.sessions.graphs import int8_cache
from edgeformer.runtime.sessions.kernels import BODIES, Library, choose_kernels
from edgeformer.runtime.sessions.prepacked import prepacked_graphs, prepacked_record
from edgeformer.runtime.sessions.prepacked.stored_panels import store_panels

TOKENS = list(range(5, 45))
PAGE = 4096
RECURRENT = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 96, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip
"""Sizes of a small Qwen3.5, three of whose layers are recurrent."""


@pytest.fixture
def bundle(int4_bundle, tmp_path):
    return shutil.copytree(int4_bundle, tmp_path / "bundle")


@pytest.fixture
def opened(monkeypatch):
    """Names of the graphs that sessions were opened of, from now on."""
    names, real = [], int8_cache.open_session

    def open_and_note(path, *rest, **options):
        names.append(path)
        return real(path, *rest, **options)

    monkeypatch.setattr(int8_cache, "open_session", open_and_note)
    return names


@pytest.fixture(autouse=True)
def one_measures_loading(monkeypatch, request):
    """Other tests are not about the times before and after, for each of which two fresh processes load the bundle."""
    if request.node.originalname != "test_it_stores_the_weights_of_kernels":
        monkeypatch.setattr(prepack, "_startup", lambda folder, threads: prepack.Startup(load_seconds=1.0, memory=None))


def logits(bundle, **options):
    return load(bundle, "cpu", **options).forward(TOKENS)


def test_it_stores_the_weights_of_kernels(bundle, int4_bundle, installed, library, opened):
    installed(library)
    folder = prepack.optimize(bundle).folder
    del opened[:]
    np.testing.assert_array_equal(logits(bundle), logits(int4_bundle))
    assert opened == [folder / "model.onnx", int4_bundle / "onnx" / "model.onnx"]
    report = load(bundle, "cpu").kernels
    assert report.kernels == load(int4_bundle, "cpu").kernels.kernels and not report.bodies
    assert verify(bundle, mode="quick").passed

    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    tensors = {each.name: {entry.key: entry.value for entry in each.external_data} for each in graph.initializer}
    products = [node for node in graph.node if (node.domain, node.op_type) == ("edgeformer", "MatMulNBits")]
    assert len(products) == report.kernels["MatMulNBits"]
    panels = set()
    for node in products:
        given, stored, *others = node.input
        assert given not in tensors and ".panels." in stored and set(others) == {""}
        assert int(tensors[stored]["offset"]) % PAGE == 0
        panels.add(stored)
    assert len(panels) == len(products)
    # What the panels stand for is gone, and everything else is there.
    read = {name for node in graph.node for name in node.input}
    assert set(tensors) <= read


def test_a_model_answers_by_steps_with_stored_weights(bundle, int4_bundle, installed, library):
    installed(library)
    prepack.optimize(bundle)
    texts = [
        model.generate(TOKENS[:9], max_new_tokens=12, temperature=0).token_ids
        for model in (load(bundle, "cpu"), load(int4_bundle, "cpu"))
    ]
    assert texts[0] == texts[1]


def test_light_ops_between_kernels_stay_what_they_are(make_model, installed, library, tmp_path, monkeypatch):
    """x · sigmoid(x) is computed by kernels, and onnxruntime would store another op that it rounds otherwise."""
    folder = export_model(make_model("qwen3_5_text", **RECURRENT), tmp_path / "b", verify=None).path
    installed(library)
    graph = onnx.load(prepack.optimize(folder).folder / "model.onnx", load_external_data=False).graph
    ops = {node.op_type for node in graph.node}
    assert "Sigmoid" in ops and "QuickGelu" not in ops
    monkeypatch.setattr(prepack, "KEPT_FOR_KERNELS", ())
    with pytest.raises(ParityError, match="differ from the bundle's own"):
        prepack.optimize(folder)


def test_with_other_kernels_the_bundles_graph_is_opened(bundle, installed, library, opened, monkeypatch):
    installed(library)
    folder = prepack.optimize(bundle).folder
    ours, plain = choose_kernels(), bundle / "onnx" / "model.onnx"
    assert isinstance(ours.library, Library)
    level, levels = ours.library.level, ours.library.levels

    def opens(expected, **options):
        del opened[:]
        load(bundle, "cpu", **options)
        assert opened == [expected]

    opens(folder / "model.onnx")
    opens(plain, kernels=False)
    other = next(each for each in levels if ours.library.panels[each] != ours.panels)
    for changes, expected in (
        ({"panels": {}}, plain),
        ({"panels": {level: "panels 0, columns 32, byte bias 0"}}, plain),
        ({"level": other}, plain),
        ({"version": "99"}, folder / "model.onnx"),
        ({"ops": ("MatMulNBits", "PackMatMulNBits")}, plain),  # it lacks one, of which the stored graph has no body
        (None, plain),
    ):
        found = "there is none" if changes is None else replace(ours.library, **changes)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "find_library", lambda found=found: found)
            opens(expected)


def test_graphs_without_functions_are_the_same_with_kernels(installed, library, tmp_path):
    folder = export_model("tiny-llama", tmp_path / "b", ops="standard", verify=None).path
    installed(library)
    manifest = Manifest.read(folder)
    assert load(folder, "cpu").kernels.kernels == {}
    with_kernels = prepacked_graphs.prepacked_folder(folder, manifest, choose_kernels())
    assert with_kernels == prepacked_graphs.prepacked_folder(folder, manifest, BODIES)
    assert prepack.optimize(folder).folder == with_kernels


def test_damaged_panels_are_an_error_that_names_them(bundle, installed, library):
    installed(library)
    graph = prepack.optimize(bundle).folder / "model.onnx"
    data = graph.with_name("model.onnx_data")
    model = onnx.load(graph, load_external_data=False)
    stored = next(each for each in model.graph.initializer if ".panels." in each.name)
    offset = next(int(entry.value) for entry in stored.external_data if entry.key == "offset")
    content = bytearray(data.read_bytes())
    content[offset] ^= 1
    data.write_bytes(content)
    prepacked_record.remember(graph.parent)
    with pytest.raises(BundleError) as refused:
        load(bundle, "cpu")
    assert f"{stored.name} holds no panels" in str(refused.value)
    assert "edgeformer optimize" in str(refused.value)
    data.write_bytes(content[: offset + 1])
    prepacked_record.remember(graph.parent)
    with pytest.raises(BundleError, match="out of bounds"):
        load(bundle, "cpu")


def product(name, weights, output):
    sizes = {"N": 70, "K": 520, "bits": 4, "block_size": 32}
    return onnx.helper.make_node("MatMulNBits", ["A", *weights], [output], domain="edgeformer", name=name, **sizes)


def test_products_of_the_same_weights_share_panels(installed, library, tmp_path):
    installed(library)
    parts = random_weights(70, 520, 4, 32, zero_points=False)
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in parts.items()]
    nodes = [product("one", parts, "y"), product("two", parts, "z")]
    nodes.append(onnx.helper.make_node("Identity", ["B"], ["b"]))
    graph = onnx.helper.make_graph(nodes, "g", [], [], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("edgeformer", 1)], ir_version=9)
    written = []

    def append(panels):
        written.append(panels)
        return {"location": "data", "offset": "0", "length": str(len(panels))}

    panels = store_panels(model, tmp_path / "no-data", choose_kernels(), append)
    assert [tensor.name for tensor in panels] == ["B.panels.0"]
    assert [len(each) for each in written] == [panels[0].dims[0]]
    assert [list(node.input) for node in model.graph.node] == [["A", "B.panels.0", ""]] * 2 + [["B"]]
    assert [each.name for each in model.graph.initializer] == ["B"]
