"""Functions of a graph that is written name no input that no call has, so that older onnxruntimes load the graph."""

import re
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from cached_bundles import copy_of_preset
from lora.peft_adapters import make_adapter

from edgeformer.contract.ops import CONTRIB, DOMAIN
from edgeformer.export import export_model
from edgeformer.export.bundle import writer
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.outlining import trim_functions
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import QuantizationOverrides

sys.path.insert(0, str(Path(__file__).parents[1] / "families"))

from op_set_rules import check, inputs_without_a_call

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "clients.md"
PROMPT = "Once upon a time, there was a dog"
"""A text whose tokens are far from others in int8: where two are close, versions of onnxruntime may differ."""


@pytest.fixture(scope="module")
def adapted(make_llama, tmp_path_factory):
    """A decoder with an adapter that is kept apart: its own form of the graph has other calls."""
    place = tmp_path_factory.mktemp("adapted")
    folder = make_llama(num_hidden_layers=2)
    adapter = make_adapter(folder, place / "adapter", target_modules=["q_proj", "up_proj"])
    return export_model(folder, place / "bundle", adapters={"adapter": adapter}, verify=None).path


def windowed(make_model, place, **options):
    """A decoder with windows in every second layer, and a graph whose caches are as short."""
    sizes = {
        "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
        "sliding_window": 12,
    }  # fmt: skip
    return export_model(make_model("gemma2", **sizes), place, verify=None, **options).path


def found_in(bundle):
    """Return, for each graph of a bundle, the inputs that no call gives, and the names of its functions."""
    graphs = {name: onnx.load(bundle / name, load_external_data=False) for name in Manifest.read(bundle).graph_files}
    wrong = {name: found for name, graph in graphs.items() if (found := inputs_without_a_call(graph))}
    return wrong, {name: {each.name for each in graph.functions} for name, graph in graphs.items()}


PER_TOKEN = QuantizationOverrides(activations="per_token")
PRESETS = {
    "fp32": ("tiny-llama", {}, "CachedAttention"),
    "bf16": ("tiny-llama", {"precision": "bf16"}, "Bf16MatMul"),
    "int8": ("tiny-llama", {"precision": "int8"}, "CachedAttention"),
    "int4": ("tiny-llama", {"precision": "int4"}, "MatMulNBitsSwiGLU"),
    "fp16-cache": ("tiny-llama", {"precision": "int4", "cache_precision": "fp16"}, "Fp16CachedAttention"),
    "int8-cache": ("tiny-llama", {"precision": "int4", "cache_precision": "int8"}, "Int8CachedAttention"),
    "per-token": ("tiny-llama", {"precision": "int8", "quantization": PER_TOKEN}, "PerTokenMatMul"),
    "encoder-decoder": ("tiny-translate", {}, "TransposedMatMul"),
    "int4 encoder-decoder": ("tiny-translate", {"precision": "int4"}, "SourceAttention"),
    "encoder": ("tiny-embed", {"precision": "int8"}, "SelfAttention"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_no_body_names_an_input_that_no_call_has(name, tmp_path):
    preset, options, function = PRESETS[name]
    wrong, functions = found_in(copy_of_preset(preset, tmp_path / "bundle", verify=None, **options))
    assert wrong == {}
    assert function in set().union(*functions.values())
    if preset == "tiny-translate":
        assert functions["onnx/decoder_model_merged.onnx"]


@pytest.mark.parametrize("name", PRESETS)
def test_onnx_infers_all_types(name, tmp_path):
    """It does not know onnxruntime's ops in functions, so what a call returns has a type of its own."""
    preset, options, _ = PRESETS[name]
    bundle = copy_of_preset(preset, tmp_path / "bundle", verify=None, **options)
    for file in Manifest.read(bundle).graph_files:
        check(onnx.load(bundle / file))


def test_graphs_for_windows_and_for_adapters_are_such(make_model, adapted, tmp_path):
    wrong, functions = found_in(windowed(make_model, tmp_path / "windowed", precision="int4"))
    assert wrong == {}
    assert "WindowedAttention" in functions["onnx/model_windowed.onnx"] - functions["onnx/model.onnx"]
    wrong, functions = found_in(adapted)
    assert wrong == {}
    assert "CachedAttention" in functions["onnx/model_adapters.onnx"]


def test_all_layers_with_windows_leave_no_function_behind(make_model, tmp_path):
    sizes = {"sliding_window": 12, "max_position_embeddings": 128, "hidden_size": 64, "intermediate_size": 96}
    folder = make_model(
        "mistral", vocab_size=131, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, **sizes
    )
    wrong, functions = found_in(export_model(folder, tmp_path / "bundle", precision="int4", verify=None).path)
    assert wrong == {}
    assert "CachedAttention" not in functions["onnx/model_windowed.onnx"]


def test_a_graph_that_is_not_trimmed_is_seen(monkeypatch, tmp_path):
    monkeypatch.setattr(writer, "trim_functions", lambda model: None)
    wrong, _ = found_in(export_model("tiny-llama", tmp_path / "bundle", precision="int4", verify=None).path)
    assert wrong["onnx/model.onnx"]["CachedAttention"] == ["attention_bias", "head_sink", "key", "value"]
    assert wrong["onnx/model.onnx"]["MatMulNBits"] == ["zero_points"]


def graph_with(function, *calls):
    """A graph that calls a function with some values, one after the other, and a function that it does not call."""
    emit = NodeBuilder("calls")
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4]))
    outputs = [emit(function.name, *(x if given else None for given in call), domain=DOMAIN) for call in calls]
    for index, output in enumerate(outputs):
        output.name, output.type, output.shape = f"y{index}", x.type, x.shape
    graph = ir.Graph([x], outputs, nodes=emit.nodes, opset_imports={"": 20, DOMAIN: 1, CONTRIB: 1}, name="graph")
    unused = ir.Value(name="a")
    spare = NodeBuilder("spare")
    other = ir.Function(
        DOMAIN, "Other", graph=ir.Graph([unused], [spare("Neg", unused)], nodes=spare.nodes, opset_imports={"": 20}),
        attributes=[],
    )  # fmt: skip
    return ir.Model(graph, ir_version=10, functions=[function, other])


def clip():
    """A function of an op with two optional inputs, the first of which may be left out alone."""
    values = [ir.Value(name=name) for name in ("input", "min", "max")]
    emit = NodeBuilder("clip")
    graph = ir.Graph(values, [emit("Clip", *values)], nodes=emit.nodes, opset_imports={"": 20}, name="Clip")
    return ir.Function(DOMAIN, "Clip", graph=graph, attributes=[])


@pytest.mark.parametrize(
    ("calls", "formal", "body"),
    [
        ([(1,)], ["input"], ["input"]),
        ([(1, 0, 0)], ["input"], ["input"]),
        ([(1,), (1, 1)], ["input", "min"], ["input", "min"]),
        ([(1, 0, 1)], ["input", "min", "max"], ["input", "", "max"]),
        ([(1, 1), (1, 0, 1)], ["input", "min", "max"], ["input", "min", "max"]),
    ],
)
def test_an_input_stays_where_any_call_has_it(calls, formal, body):
    model = graph_with(clip(), *calls)
    trim_functions(model)
    assert [function.name for function in model.functions.values()] == ["Clip"]
    proto = ir.to_proto(model)
    assert (list(proto.functions[0].input), list(proto.functions[0].node[0].input)) == (formal, body)
    assert inputs_without_a_call(proto) == {}


def test_a_call_in_a_branch_counts():
    model = graph_with(clip(), (1,))
    x, node = model.graph.inputs[0], model.graph[0]
    branches = []
    for name, inputs in (("then", [x, None, x]), ("else", [x])):
        emit = NodeBuilder(name)
        output = emit("Clip", *inputs, domain=DOMAIN)
        output.name = name
        branches.append(ir.Graph([], [output], nodes=emit.nodes, name=name))
    condition = ir.Value(name="condition", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    model.graph.inputs.append(condition)
    emit = NodeBuilder("choice")
    emit("If", condition, then_branch=branches[0], else_branch=branches[1])
    model.graph.insert_after(node, emit.nodes)
    trim_functions(model)
    assert list(ir.to_proto(model).functions[0].node[0].input) == ["input", "", "max"]


LEAST = {
    "fp32, bf16": ({"precision": "fp32"}, "1.20.1", "1.19.2"),
    "int4": ({"precision": "int4"}, "1.22.1", "1.21.1"),
    "int8": ({"precision": "int8"}, "1.23.2", "1.22.1"),
    "int4, int8 with `--deployment web`": ({"precision": "int4", "deployment": "web"}, "1.20.1", "1.19.2"),
}
"""Rows of decoders in the page of clients: options, the oldest onnxruntime that runs them, and one that does not."""


def installed(version, folder):
    """Install an onnxruntime into a folder, and return the folder."""
    line = [sys.executable, "-m", "pip", "install", "-q", "--target", folder, "--no-deps", f"onnxruntime=={version}"]
    if subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip(f"2026-11-28: pip cannot install onnxruntime {version} here")
    return folder


def written(bundle, folder=None):
    """Return the text that the example program writes. folder: has the onnxruntime to use; None for the tests' own."""
    line = [sys.executable, ROOT / "examples" / "python_onnxruntime.py", bundle, PROMPT, "--new-tokens", "48"]
    env = {} if folder is None else {"PYTHONPATH": str(folder)}
    return subprocess.run(line, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("row", LEAST)
def test_the_oldest_onnxruntime_writes_the_same_tokens(row, tmp_path):
    options, oldest, too_old = LEAST[row]
    assert re.search(rf"^\| [^|]*{re.escape(row)} \| {oldest.rpartition('.')[0]} \|", PAGE.read_text("utf-8"), re.M)
    bundle = copy_of_preset("tiny-llama", tmp_path / "bundle", verify=None, **options)
    expected = written(bundle)
    assert expected.stdout.count(" ") > 40
    found = written(bundle, installed(oldest, tmp_path / "oldest"))
    assert (found.stdout, found.returncode) == (expected.stdout, 0), found.stderr
    assert written(bundle, installed(too_old, tmp_path / "older")).returncode == 1
