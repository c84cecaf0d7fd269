"""`check --provider webgpu`: by the table of what the plugin takes, without one."""

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from webgpu_cases import CASES

from edgeformer.check import check
from edgeformer.check.providers.audit import audit_graph
from edgeformer.check.providers.kernel_table import kernel_table
from edgeformer.cli.main import cli
from edgeformer.export import export_model

GRAPH = "onnx/model.onnx"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The preset tiny-llama in int4 for WebGPU. Read-only."""
    folder = tmp_path_factory.mktemp("bundles") / "webgpu"
    return export_model("tiny-llama", folder, precision="int4", provider="webgpu", verify=None).path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rules_about_attributes(case):
    found = [str(each) for each in audit_graph("graph", case.model(), kernel_table("webgpu")).findings]
    assert len(found) == (case.problem is not None)
    assert all(case.problem in each for each in found)


def test_an_export_runs_there(exported):
    """The host works out lengths, and nothing of a layer."""
    audit = check(exported, "webgpu").audit
    assert (audit.verdict, audit.findings, audit.package) == ("loads", (), "onnxruntime-ep-webgpu 0.4.0")
    (graph,) = audit.graphs
    assert graph.on_device > 50
    assert graph.on_cpu == {"Cast": 2, "ReduceSum": 1, "Shape": 1, "Squeeze": 1, "Sub": 1}


def loop_over(graph, index):
    """Put a Loop that does nothing into the way of a node."""
    node = graph.node[index]
    step, going = (helper.make_tensor_value_info(*each) for each in (("i", 7, []), ("c", TensorProto.BOOL, [])))
    before, after = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("b", "a"))
    goes_on = helper.make_tensor_value_info("g", TensorProto.BOOL, [])
    nodes = [helper.make_node("Identity", ["c"], ["g"]), helper.make_node("Identity", ["b"], ["a"])]
    body = helper.make_graph(nodes, "body", [step, going, before], [goes_on, after])
    graph.initializer.append(helper.make_tensor("planted.count", TensorProto.INT64, [], [1]))
    inputs = ["planted.count", "", node.input[0]]
    graph.node.insert(index, helper.make_node("Loop", inputs, ["planted"], name="planted", body=body))
    node.input[0] = "planted"


def integers_of(graph, index):
    """Put a detour over int64 into the way of a node: there is no Cast from it."""
    node = graph.node[index]
    graph.node.insert(index, helper.make_node("Cast", ["planted.int"], ["planted"], to=1, name="planted.float"))
    cast = helper.make_node("Cast", [node.input[0]], ["planted.int"], to=TensorProto.INT64, name="planted.int")
    graph.node.insert(index, cast)
    graph.node[index + 2].input[0] = "planted"


def capped(graph, index):
    """Give an attention a soft-cap."""
    for node in graph.node:
        if node.op_type == "GroupQueryAttention":
            node.attribute.append(helper.make_attribute("softcap", 30.0))
            break


FAULTS = {
    "a loop": (loop_over, "Loop planted runs on the CPU, inside a layer: there is no kernel of this op"),
    "int64": (integers_of, "Cast planted.float runs on the CPU, inside a layer: there is no kernel for T1 = int64"),
    "a soft-cap": (
        capped,
        "com.microsoft::GroupQueryAttention blocks.0.attention/GroupQueryAttention: it has a soft-cap, which",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_node_is_found(exported, spoil, fault):
    change, message = FAULTS[fault]

    def plant(edit):
        file = edit.folder / GRAPH
        model = onnx.load(file, load_external_data=False)
        (index,) = (at for at, node in enumerate(model.graph.node) if node.name == "blocks.1.feed_forward.down/MatMul")
        change(model.graph, index)
        onnx.save(model, file)

    (finding,) = check(spoil(exported, plant), "webgpu").audit.findings
    assert str(finding).startswith(f"{GRAPH}: {message}")


def test_shapes_are_none_of_a_layers_numbers():
    """A node that reads the shape of a layer's numbers may be on the CPU; one that reads the numbers may not."""
    for op, expected in (("Shape", ()), ("NonZero", ("NonZero",))):
        nodes = [
            helper.make_node(op, ["x"], ["n"], name="first"),
            helper.make_node("Add", ["n", "n"], ["y"], name="second"),
        ]
        values = [helper.make_tensor_value_info("x", 1, ["a", "b"])], [helper.make_tensor_value_info("y", 7, None)]
        model = helper.make_model(helper.make_graph(nodes, "g", *values), opset_imports=[helper.make_opsetid("", 21)])
        found = audit_graph("graph", model, kernel_table("webgpu")).findings
        assert tuple(str(each).split()[1] for each in found)[:1] == expected


def test_the_command_exits_by_the_audit(bundles, exported):
    passed = CliRunner().invoke(cli, ["check", str(exported), "--provider", "webgpu"])
    assert passed.exit_code == 0, passed.output
    assert "Every node of every layer has a WebGPU kernel." in passed.output
    assert "kernels: onnxruntime-ep-webgpu 0.4.0, onnxruntime" in passed.output
    failed = CliRunner().invoke(cli, ["check", str(bundles["gemma2"]), "--provider", "webgpu"])
    assert failed.exit_code == 1
    assert "it has a soft-cap, which the kernel" in " ".join(failed.output.split())
