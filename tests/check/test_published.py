"""Published operators of other providers: what a table says of each node, and nothing more."""

import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from edgeformer.check import check
from edgeformer.check.published import OPERATOR_TABLES
from edgeformer.check.published.audit import count_operators
from edgeformer.check.published.tables import OperatorTable
from edgeformer.cli.main import cli
from edgeformer.manifest.providers import PROVIDERS

TABLE = OperatorTable(title="T", source="s", commit="c", ops={"Add": "", "If": "", "com.microsoft::Gelu": "a limit"})


def model(*nodes, functions=()):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(list(nodes), "graph", values[:1], values[1:])
    return helper.make_model(graph, functions=list(functions))


def test_domains_subgraphs_and_bodies_are_counted():
    branch = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["z"])], "b", [], [])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("edgeformer", 1)]
    inner = helper.make_function(
        "edgeformer", "Inner", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets
    )
    call = helper.make_node("Inner", ["a"], ["c"], domain="edgeformer")
    outer = helper.make_function("edgeformer", "Outer", ["a"], ["c"], [call], opsets)
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        helper.make_node("Gelu", ["x"], ["h"]),
        helper.make_node("If", ["x"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Outer", ["x"], ["y"], domain="edgeformer"),
        helper.make_node("Outer", ["x"], ["w"], domain="edgeformer"),
        helper.make_node("Constant", [], ["k"], value_float=1.0),
    ]
    found = count_operators("m.onnx", model(*nodes, functions=[inner, outer]), TABLE)
    assert found.taken == {"Add": 2, "If": 1, "com.microsoft::Gelu": 1}
    assert found.left == {"Gelu": 1, "Mul": 2}
    assert found.limits == {"com.microsoft::Gelu": "a limit"}


@pytest.mark.parametrize("name", OPERATOR_TABLES)
def test_a_bundle_is_compared_with_each_table(name, tiny_llama_bundle):
    report = check(tiny_llama_bundle, name)
    (graph,) = report.operators.graphs
    assert report.audit is None and report.to_json()["operators"]["commit"] == OPERATOR_TABLES[name].commit
    assert graph.taken["MatMul"] > 0 and graph.left["com.microsoft::GroupQueryAttention"] == 6
    assert set(graph.limits) <= set(graph.taken)


def test_tables_name_other_providers_and_their_source():
    assert not OPERATOR_TABLES.keys() & PROVIDERS.keys()
    for table in OPERATOR_TABLES.values():
        assert table.source.startswith("github.com/microsoft/onnxruntime/") and len(table.commit) == 40
        assert len(table.ops) > 10


def test_the_command_says_what_was_not_compared(tiny_llama_bundle):
    done = CliRunner().invoke(cli, ["check", str(tiny_llama_bundle), "--provider", "xnnpack"])
    assert done.exit_code == 0, done.output
    assert "XNNPACK" in done.output and "MatMul: 2 dimensions" in done.output
    assert "Types, shapes and limits were not compared, and nothing was run." in done.output
