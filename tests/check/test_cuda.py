"""`check --provider cuda`: graphs whose layers run on the GPU pass, and nodes that do not are found."""

import json

import onnx
import pytest
from click.testing import CliRunner
from cuda_cases import BFLOAT16, CASES, HALF, INT32, INT64
from onnx import TensorProto, helper

from edgeformer.check import check
from edgeformer.check.providers.audit import audit_graph
from edgeformer.check.providers.kernel_table import Kernel, kernel_table
from edgeformer.cli.main import cli
from edgeformer.export import export_model
from edgeformer.manifest.parts import Precision

GRAPH = "onnx/model.onnx"


@pytest.fixture(scope="module")
def exported(make_model, tmp_path_factory):
    """A function that exports a model of two layers for CUDA, once for each precision."""
    checkpoint = make_model(
        "llama", 5, vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    place, made = tmp_path_factory.mktemp("cuda"), {}

    def export(precision: Precision):
        if precision not in made:
            options = {"provider": "cuda", "precision": precision, "verify": None}
            made[precision] = export_model(checkpoint, place / precision, **options).path
        return made[precision]

    return export


def audited(nodes, inputs, outputs, opset=24):
    """The audit of a graph of these nodes; inputs and outputs are (name, type, dims)."""
    values = [[helper.make_tensor_value_info(*each) for each in part] for part in (inputs, outputs)]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "graph", *values), opset_imports=opsets, ir_version=11)
    return audit_graph("graph", model, kernel_table())


@pytest.mark.parametrize("precision", ["fp16", "fp32", "int4"])
def test_an_export_for_cuda_runs_there(exported, precision):
    report = check(exported(precision), "cuda")
    assert report.audit.verdict == "loads", report.audit.findings
    (graph,) = report.audit.graphs
    assert graph.on_device > 20
    assert {"Squeeze", "Cast"} & graph.shapes.keys()
    assert graph.on_cpu == {}


def test_without_the_option_nothing_is_said_about_cuda(bundles):
    report = check(bundles["llama"])
    assert report.audit is None
    assert "provider" not in report.to_json()


@pytest.mark.parametrize("kind", ["llama", "bf16", "int4", "int8 cache"])
def test_attention_of_the_cpu_is_found(bundles, kind):
    """A bundle for the CPU has float32 attention, for which CUDA has no kernel."""
    audit = check(bundles[kind], "cuda").audit
    assert audit.verdict == "does not load"
    (finding,) = audit.findings
    assert "GroupQueryAttention blocks.0.attention/GroupQueryAttention" in str(finding)
    assert "runs on the CPU, inside a layer" in str(finding)
    assert "there is no kernel for T = float" in str(finding)


def plant(path, name, change):
    """Change a graph of a bundle: `change` gets the graph and the place of the node `name`."""
    file = path / GRAPH
    model = onnx.load(file, load_external_data=False)
    (index,) = (index for index, node in enumerate(model.graph.node) if node.name == name)
    change(model.graph, index)
    onnx.save(model, file)


def test_a_planted_node_without_a_kernel_is_found(exported, spoil):
    def hardmax(graph, index):
        node = graph.node[index]
        graph.node.insert(index, helper.make_node("Hardmax", [node.input[0]], ["planted"], name="planted"))
        node.input[0] = "planted"

    bundle = exported("fp16")
    down = "blocks.1.feed_forward.down/MatMul"
    folder = spoil(bundle, lambda edit: plant(edit.folder, down, hardmax))
    audit = check(folder, "cuda").audit
    (finding,) = audit.findings
    assert str(finding) == (
        "onnx/model.onnx: Hardmax planted runs on the CPU, inside a layer: there is no kernel of this op. Export the "
        "model for CUDA: edgeformer export --provider cuda."
    )
    assert check(bundle, "cuda").audit.findings == ()


def test_a_planted_type_is_found(exported, spoil):
    """A Cast makes an activation an integer, and back; the op between has no kernel for that type."""

    def sine(graph, index):
        node = graph.node[index]
        planted = [
            helper.make_node("Cast", [node.input[0]], ["planted.wide"], to=BFLOAT16, name="planted.wide"),
            helper.make_node("Sin", ["planted.wide"], ["planted.sin"], name="planted.sin"),
            helper.make_node("Cast", ["planted.sin"], ["planted"], to=HALF, name="planted.back"),
        ]
        for place, each in enumerate(planted):
            graph.node.insert(index + place, each)
        node.input[0] = "planted"

    folder = spoil(exported("fp16"), lambda edit: plant(edit.folder, "blocks.1.feed_forward.down/MatMul", sine))
    (finding,) = check(folder, "cuda").audit.findings
    assert "Sin planted.sin does not run, since the CPU has none either: there is no kernel for T = bfloat16" in str(
        finding
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rules_about_attributes(case):
    findings = audit_graph("graph", case.model(), kernel_table()).findings
    severe = [str(each) for each in findings if each.severity != "warning"]
    if case.problem is None:
        assert severe == []
    else:
        assert len(severe) == 1
        assert case.problem in severe[0]


def test_a_state_that_only_large_devices_hold_is_a_warning():
    (case,) = (case for case in CASES if case.name == "linear attention, wide heads")
    narrow = case.model()
    for value in narrow.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name == "past":
            dims[2].dim_value, dims[3].dim_value = 256, 128
    (finding,) = audit_graph("graph", narrow, kernel_table()).findings
    assert finding.severity == "warning"
    assert "needs 133,120 bytes of shared memory, more than there are on GeForce RTX 30 and 40" in str(finding)


def test_integers_outside_of_layers_may_run_on_the_cpu():
    nodes = [
        helper.make_node("BitwiseNot", ["mask"], ["turned"], name="turned"),
        helper.make_node("Cast", ["turned"], ["output"], to=HALF, name="cast"),
    ]
    audit = audited(nodes, [("mask", INT32, ["batch"])], [("output", HALF, ["batch"])])
    assert (audit.on_cpu, audit.on_device, audit.findings) == ({"BitwiseNot": 1}, 1, ())


def test_types_reach_the_bodies_of_functions_and_branches():
    """A function is judged by its body, with the types of each call."""
    body = [helper.make_node("Hardmax", ["x"], ["y"], name="inner")]
    function = helper.make_function("edgeformer", "Wave", ["x"], ["y"], body, [helper.make_opsetid("", 22)])
    branch = helper.make_graph(
        [helper.make_node("Wave", ["given"], ["z"], domain="edgeformer", name="call")],
        "branch", [], [helper.make_tensor_value_info("z", HALF, None)],
    )  # fmt: skip
    node = helper.make_node("If", ["choice"], ["output"], name="if", then_branch=branch, else_branch=branch)
    inputs = [
        helper.make_tensor_value_info("given", HALF, ["n"]),
        helper.make_tensor_value_info("choice", TensorProto.BOOL, []),
    ]
    graph = helper.make_graph([node], "graph", inputs, [helper.make_tensor_value_info("output", HALF, ["n"])])
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("edgeformer", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    (finding,) = audit_graph("graph", model, kernel_table()).findings
    assert "Hardmax if/call/inner and 1 more runs on the CPU, inside a layer: there is no kernel of this op" in str(
        finding
    )


def test_an_op_that_nobody_knows_cannot_be_compared():
    node = helper.make_node("Strange", ["x"], ["y"], domain="com.microsoft", name="strange")
    (finding,) = audited([node], [("x", HALF, ["n"])], [("y", HALF, ["n"])]).findings
    assert "com.microsoft::Strange strange does not run" in str(finding)


def test_a_kernel_without_an_end_is_for_its_own_version_only():
    assert Kernel(14, None, {}).is_for(14)
    assert not Kernel(14, None, {}).is_for(15)
    assert Kernel(7, 12, {}).is_for(9)
    nodes = [helper.make_node("Shape", ["x"], ["y"], name="shape")]
    assert audited(nodes, [("x", HALF, ["n"])], [("y", INT64, [1])], opset=24).findings == ()


def test_the_command_exits_by_the_audit(bundles, exported):
    passed = CliRunner().invoke(cli, ["check", str(exported("fp16")), "--provider", "cuda"])
    assert passed.exit_code == 0, passed.output
    assert "Every node of every layer has a CUDA kernel." in passed.output
    assert "kernels: onnxruntime_gpu-" in passed.output
    failed = CliRunner().invoke(cli, ["check", str(bundles["llama"]), "--provider", "cuda", "--json"])
    assert failed.exit_code == 1
    data = json.loads(failed.stdout)["provider"]
    assert (data["provider"], data["verdict"], data["onnxruntime"]) == ("cuda", "does not load", "1.31.1")
    assert CliRunner().invoke(cli, ["check", str(bundles["llama"])]).exit_code == 0
