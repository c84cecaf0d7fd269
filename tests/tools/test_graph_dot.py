"""Graphs as dot: boxes, edges, clusters of layers, one layer, bodies, and a layer that does not exist."""

import re

import onnx
import pytest
from click.testing import CliRunner
from graph_dot import dot, main
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


def value(name):
    return helper.make_tensor_value_info(name, FLOAT, ["rows", 4])


def graph_of(nodes, weights=()):
    tensors = [helper.make_tensor(name, FLOAT, [4, 4], [0.0] * 16) for name in weights]
    return helper.make_graph(nodes, "test", [value("x")], [value("y")], tensors)


@pytest.fixture(scope="module")
def layered():
    """Two layers of x + x · W."""
    nodes, before = [], "x"
    for layer, after in enumerate(("between", "y")):
        name = f"blocks.{layer}"
        nodes += [
            helper.make_node("MatMul", [before, f"{name}.w"], [f"product{layer}"], name=f"{name}.w/MatMul"),
            helper.make_node("Add", [before, f"product{layer}"], [after], name=f"{name}/Add"),
        ]
        before = after
    return graph_of(nodes, ["blocks.0.w", "blocks.1.w"])


def edges(text):
    """Return the edges with the labels of their ends, each cut at its first line."""
    label = {name: text.split("\\n")[0] for name, text in re.findall(r'(\w+) \[.*?label="(.*?)"\]', text)}
    return {(label[start], label[end]) for start, end in re.findall(r"(\w+) -> (\w+)", text)}


def test_a_graph_has_boxes_edges_and_a_cluster_a_layer(layered):
    text = dot(layered)

    assert re.findall(r'cluster_\d+ \{ label="(.*?)"', text) == ["blocks.0", "blocks.1"]
    assert 'label="MatMul\\n.w/MatMul\\n.w"' in text
    assert edges(text) == {
        ("x", "MatMul"),
        ("x", "Add"),
        ("MatMul", "Add"),
        ("Add", "MatMul"),
        ("Add", "Add"),
        ("Add", "y"),
    }
    assert text.count("->") == 2 + 1 + 2 + 1 + 1


def test_one_layer_has_what_enters_and_leaves_it(layered):
    assert edges(dot(layered, 0)) == {("x", "MatMul"), ("x", "Add"), ("MatMul", "Add"), ("Add", "between")}
    assert edges(dot(layered, 1)) == {("between", "MatMul"), ("between", "Add"), ("MatMul", "Add"), ("Add", "y")}


def test_outer_tensors_of_a_body_are_edges_to_its_node():
    body = helper.make_graph([helper.make_node("Neg", ["a"], ["b"])], "body", [], [value("b")])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body),
    ]

    assert edges(dot(graph_of(nodes))) == {("x", "Relu"), ("Relu", "If"), ("x", "If"), ("If", "y")}


def test_the_command_reads_a_file_and_refuses_an_unknown_layer(layered, tmp_path):
    file = tmp_path / "model.onnx"
    onnx.save(helper.make_model(layered), file)

    assert CliRunner().invoke(main, [str(file)]).stdout == dot(layered)
    assert CliRunner().invoke(main, [str(file), "--layer", "1"]).stdout == dot(layered, 1)
    assert f"{file} has no nodes of a layer 7." in CliRunner().invoke(main, [str(file), "--layer", "7"]).output
