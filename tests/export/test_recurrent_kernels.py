"""Layers with a state of fixed size are calls of functions, with nothing around them that kernels lack."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from build_graph import build_graph
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.contract.ops import FUNCTIONS
from edgeformer.export.lower import LoweringOptions
from edgeformer.export.lower.ort.kernels import recurrent_functions
from edgeformer.export.lower.ort.kernels.recurrent_layout import simplify_recurrent_layout
from edgeformer.families import read_model_config
from edgeformer.manifest.quantization import make_quantization
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime.sessions.graphs import fused_nodes

SHARED = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"], "block_multiple_of": 16},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "linear_attention", "full_attention"], "head_dim": 64,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "partial_rotary_factor": 0.25,
    },
    "granitemoehybrid": {
        "layer_types": ["mamba", "mamba", "attention"], "shared_intermediate_size": 48, "num_local_experts": 0,
        "num_experts_per_tok": 0, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1,
        "mamba_expand": 2, "position_embedding_type": "rope",
    },
}  # fmt: skip
INT8 = make_quantization("int8")
CALLS = {
    "lfm2": {"MaskedCausalConv": 2},
    "qwen3_5_text": {"MaskedCausalConv": 2, "MaskedLinearAttention": 2},
    "granitemoehybrid": {"MaskedCausalConv": 2, "MaskedLinearAttention": 2},
}
KERNELS = {each.name for each in FUNCTIONS} | {"MatMulNBitsSwiGLU", "MatMulNBitsBias", "SplitRMSNorm"}
AROUND = {"Where", "Greater", "CastLike", "Concat", "Transpose", "GatherND"}
"""Ops of torch's softplus, of shapes that it computes, and of bodies."""


def graph_of(name, **options):
    config = read_model_config({"model_type": name} | SHARED | MODELS[name])[1]
    return build_graph(model_spec_of(config), RandomWeights(config, 0), lowering=LoweringOptions(**options))[0]


def ops_of(graph):
    return Counter(node.op_type for node in graph.graph)


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_calls_of_functions(name):
    graph = graph_of(name, quantization=INT8)
    found = ops_of(graph)
    assert {op: found[op] for op in ("MaskedCausalConv", "MaskedLinearAttention") if found[op]} == CALLS[name]
    assert not AROUND & found.keys()
    functions = {function.name: Counter(node.op_type for node in function) for function in graph.functions.values()}
    assert functions["MaskedCausalConv"]["Transpose"] == 3
    assert name == "lfm2" or functions["MaskedLinearAttention"]["LinearAttention"] == 1


@pytest.mark.parametrize("options", [{}, {"quantization": INT8, "provider": "webgpu"}], ids=["float32", "WebGPU"])
def test_graphs_without_other_kernels_have_their_nodes(options):
    """Nothing else of such a graph is for kernels either."""
    found = ops_of(graph_of("granitemoehybrid", **options))
    assert not {"MaskedCausalConv", "MaskedLinearAttention"} & found.keys() and found["Concat"]


@pytest.mark.parametrize("name", MODELS)
def test_graphs_compute_what_they_did(name, monkeypatch):
    """Bodies are the nodes that were there, and what was simplified around them gives the same numbers."""
    new = graph_of(name, quantization=INT8)
    monkeypatch.setattr(recurrent_functions, "NAMES", {})
    old = graph_of(name, quantization=INT8)
    assert AROUND & ops_of(old).keys()
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.standard_normal([2 if isinstance(size, ir.SymbolicDim) else size for size in value.shape])
        .astype(np.float32) * 0.1
        for value in new.graph.inputs
        if value.name.startswith("past")
    }  # fmt: skip
    for key in [key for key in feeds if "key_values" in key]:
        feeds[key] = feeds[key][:, :, :0]
    feeds |= {"input_ids": random.integers(0, 60, (2, 7)), "attention_mask": np.ones((2, 7), np.int64)}
    results = []
    for graph in (new, old):
        session = ort.InferenceSession(ir.serde.serialize_model(graph).SerializeToString())
        given = {each.name for each in session.get_inputs()}
        results.append(session.run(None, {key: value for key, value in feeds.items() if key in given}))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * max(np.abs(expected).max(), 1))


def test_a_second_body_of_one_name_is_not_called(monkeypatch):
    """A function has one body, so a convolution that needs another has its nodes."""
    bodies, body = [], recurrent_functions.causal_conv

    def longer(emit, node, form):
        outputs = body(emit, node, form)
        bodies.append(emit)
        return [emit("Identity", outputs[0]), outputs[1]] if len(bodies) == 2 else outputs

    monkeypatch.setattr(recurrent_functions, "causal_conv", longer)
    found = ops_of(graph_of("lfm2", quantization=INT8))
    assert len(bodies) == 2 and found["MaskedCausalConv"] == 1 and found["Transpose"] == 3


def around(nodes, constants, outputs):
    """A graph of x [2, 3, 12] and nodes, by op, inputs, outputs and attributes, before and after its simplification."""
    stored = [from_array(np.array(value, kind), name) for name, (value, kind) in constants.items()]
    x = make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", 12])
    given = [make_node(op, *values, **attributes) for op, *values, attributes in nodes]
    returned = [make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    model = make_model(make_graph(given, "g", [x], returned, stored), opset_imports=[make_opsetid("", 20)])
    model.ir_version = 9
    before, after = model.SerializeToString(), ir.from_proto(model)
    simplify_recurrent_layout(after)
    RemoveUnusedNodesPass()(after)
    return before, after


def slices(*parts):
    """Slices of the last axis: begin and end of each."""
    nodes = [("Slice", ["x", f"begin{i}", f"end{i}", "axis", "step"], [f"y{i}"], {}) for i in range(len(parts))]
    constants = {"axis": ([2], np.int64), "step": ([1], np.int64)}
    for i, (begin, end) in enumerate(parts):
        constants |= {f"begin{i}": ([begin], np.int64), f"end{i}": ([end], np.int64)}
    outputs = {f"y{i}": ["batch", "tokens", min(end, 12) - begin] for i, (begin, end) in enumerate(parts)}
    return nodes, constants, outputs


def softplus(beta=1.0, threshold=20.0):
    """torch's, as its exporter writes it."""
    nodes = [
        ("CastLike", ["beta", "x"], ["as_x"], {}),
        ("Mul", ["x", "as_x"], ["scaled"], {}),
        ("Softplus", ["scaled"], ["positive"], {}),
        ("CastLike", ["beta", "positive"], ["as_positive"], {}),
        ("Div", ["positive", "as_positive"], ["below"], {}),
        ("CastLike", ["threshold", "scaled"], ["as_scaled"], {}),
        ("Greater", ["scaled", "as_scaled"], ["above"], {}),
        ("Where", ["above", "x", "below"], ["y"], {}),
    ]
    constants = {"beta": (beta, np.float32), "threshold": (threshold, np.float32)}
    return nodes, constants, {"y": ["batch", "tokens", 12]}


def computed_shape(*sizes, output):
    """A Reshape to the first two sizes of x, and others."""
    nodes = [
        ("Shape", ["x"], ["first"], {"start": 0, "end": 2}),
        ("Concat", ["first", "others"], ["shape"], {"axis": 0}),
        ("Reshape", ["x", "shape"], ["y"], {"allowzero": 1}),
    ]
    return nodes, {"others": (list(sizes), np.int64)}, {"y": output}


SIMPLER = {
    "parts": (slices((0, 5), (5, 9), (9, 12)), ["Split"]),
    "parts in another order": (slices((9, 2**40), (0, 9)), ["Split"]),
    "a softplus": (softplus(), ["Softplus"]),
    "heads": (computed_shape(3, 4, output=["batch", "tokens", 3, 4]), ["Reshape"]),
}
AS_BEFORE = {
    "a gap between parts": slices((0, 5), (6, 12)),
    "parts that overlap": slices((0, 7), (5, 12)),
    "not the end": slices((0, 5), (5, 9)),
    "one part": slices((0, 12)),
    "a softplus of another beta": softplus(beta=2.0),
    "a softplus with a low threshold": softplus(threshold=10.0),
    "two sizes that nothing says": computed_shape(3, 4, output=["batch", "tokens", "some", "others"]),
}


def run(model):
    x = np.random.default_rng(0).standard_normal((2, 3, 12)).astype(np.float32) * 20
    return ort.InferenceSession(model).run(None, {"x": x})


@pytest.mark.parametrize("case", SIMPLER)
def test_what_is_around_becomes_simpler(case):
    graph, ops = SIMPLER[case]
    before, after = around(*graph)
    assert [node.op_type for node in after.graph if node.op_type != "Constant"] == ops
    for found, expected in zip(run(ir.serde.serialize_model(after).SerializeToString()), run(before), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", AS_BEFORE)
def test_what_means_something_else_stays(case):
    before, after = around(*AS_BEFORE[case])
    assert [node.op_type for node in after.graph] == [node.op_type for node in onnx.load_from_string(before).graph.node]


def test_a_whole_layer_is_one_node():
    """But for what cuts the logits, the nodes that the runtime leaves are of constants, and of the mask."""
    ops = {fused_nodes.NAME, "MaskedCausalConv", "MaskedLinearAttention", *KERNELS}
    for name in MODELS:
        model = ir.serde.serialize_model(graph_of(name, quantization=INT8)).SerializeToString()
        left = Counter(node.op_type for node in onnx.load_from_string(fused_nodes.fused(model, ops)).graph.node)
        assert left[fused_nodes.NAME] == 2
        assert not {"Split", "Reshape", "Sigmoid", "Softplus", "Div", "MatMulNBitsSwiGLU"} & left.keys(), name
