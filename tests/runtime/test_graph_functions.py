"""Calls of functions are counted without the package onnx, also in branches and within functions."""

import onnx
import pytest
from onnx.helper import make_function, make_graph, make_model, make_node, make_opsetid

from edgeformer.errors import BundleError
from edgeformer.runtime.sessions.graphs.graph_functions import function_calls

OPSETS = [make_opsetid("", 18), make_opsetid("edgeformer", 1), make_opsetid("other", 1)]


def node(name, domain="edgeformer", **attributes):
    return make_node(name, ["x"], ["y"], domain=domain, **attributes)


def function(name, *nodes, domain="edgeformer", overload=""):
    return make_function(domain, name, ["x"], ["y"], list(nodes), OPSETS, overload=overload)


def write(path, nodes, functions=()):
    graph = make_graph(list(nodes), "g", [], [], [onnx.helper.make_tensor("w", 1, [300], [1.0] * 300)])
    path.write_bytes(make_model(graph, functions=list(functions), opset_imports=OPSETS).SerializeToString())
    return path


def test_calls_count_where_they_run(tmp_path):
    inner = function("Block", node("Linear"), node("Linear"), node("Relu", ""))
    path = write(
        tmp_path / "g.onnx",
        [node("Block"), node("Block"), node("Linear"), node("Linear", "other"), node("MatMul", "")],
        [inner, function("Linear", node("MatMul", ""))],
    )
    calls = function_calls(path)
    assert calls.split(()) == ({}, {"Block": 2, "Linear": 5})
    assert calls.split(["Linear"]) == ({"Linear": 5}, {"Block": 2})
    assert calls.split(["Block"]) == ({"Block": 2}, {"Linear": 1})
    assert calls.split(["Block", "Linear", "Absent"]) == ({"Block": 2, "Linear": 1}, {})


def test_calls_in_branches_and_overloads_count(tmp_path):
    branch = make_graph([node("Linear")], "branch", [], [])
    call = node("Linear")
    call.overload = "wide"
    path = write(
        tmp_path / "g.onnx",
        [make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch), call],
        [function("Linear", node("Relu", "")), function("Linear", node("Other"), overload="wide")],
    )
    assert function_calls(path).split(()) == ({}, {"Linear": 3, "Other": 1})
    assert function_calls(path).split(["Linear"]) == ({"Linear": 3}, {})


@pytest.mark.parametrize("content", [b"not a graph at all", b"\x3a\xff\xff", b"\x3a", b"\x3b\x00"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "g.onnx").write_bytes(content)
    with pytest.raises(BundleError, match="is not an ONNX graph, or is damaged. Copy or export it again"):
        function_calls(tmp_path / "g.onnx")


def test_a_function_that_calls_itself_is_refused(tmp_path):
    path = write(tmp_path / "g.onnx", [node("Loops")], [function("Loops", node("Loops"))])
    with pytest.raises(BundleError, match="a function of the graph calls itself: Loops"):
        function_calls(path).split(())
