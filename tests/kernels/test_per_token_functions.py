"""Products with activations quantized per token: graphs call functions, whose bodies and kernels compute the same."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info
from onnx.numpy_helper import from_array

from edgeformer.export import export_model, verify
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.lower import ort as op_set
from edgeformer.export.lower.ort.kernels.kernel_functions import call_kernels
from edgeformer.export.lower.ort.kernels.per_token_functions import call_per_token_kernels
from edgeformer.manifest.graph_forms import ENCODER_GRAPH, GRAPH
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.runtime.sessions import kernels
from edgeformer.runtime.sessions.graphs.graph_functions import function_calls
from edgeformer.runtime.sessions.session import onnxruntime_errors

PER_TOKEN = make_quantization("int8", QuantizationOverrides(activations="per_token"))
LLAMA = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
BERT = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
T5 = {
    "vocab_size": 97, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "pad_token_id": 0,
    "eos_token_id": 1, "decoder_start_token_id": 0, "relative_attention_num_buckets": 8,
}  # fmt: skip
MODELS = {
    "llama": ("llama", "AutoModelForCausalLM", LLAMA, GRAPH, {"PerTokenMatMul", "PerTokenGatedFeedForwardSilu"}),
    "gemma": ("gemma", "AutoModelForCausalLM", LLAMA, GRAPH, {"PerTokenMatMul", "PerTokenGatedFeedForwardGeluTanh"}),
    "bert": ("bert", "AutoModelForMaskedLM", BERT, GRAPH, {"PerTokenMatMulBias", "PerTokenFeedForwardGeluBias"}),
    "t5": ("t5", "AutoModelForSeq2SeqLM", T5, ENCODER_GRAPH, {"PerTokenMatMul", "PerTokenFeedForwardRelu"}),
}
"""Families by name: classes, config, graph, and the functions that it calls."""


@pytest.fixture(scope="module")
def graph_of(make_model, tmp_path_factory):
    """Return a function that exports a model and returns the path of the graph; each is exported once."""
    made = {}

    def export(name):
        if name not in made:
            family, auto, options, graph, _ = MODELS[name]
            limits = {"context_length": 64} if name == "t5" else {}
            place = tmp_path_factory.mktemp("bundles") / name
            folder = make_model(family, auto=auto, **options)
            export_model(folder, place, precision="int8", quantization=PER_TOKEN, verify=None, **limits)
            made[name] = place / graph
        return made[name]

    return export


def functions_of(path):
    """The functions for products per token that a graph has, by name."""
    functions = onnx.load(path, load_external_data=False).functions
    return {each.name: each for each in functions if each.name.startswith("PerToken")}


@pytest.mark.parametrize("name", MODELS)
def test_all_products_are_in_functions(graph_of, name):
    model = onnx.load(graph_of(name), load_external_data=False)
    assert functions_of(graph_of(name)).keys() == MODELS[name][-1]
    assert "MatMulIntegerToFloat" not in {node.op_type for node in model.graph.node}
    domains = {node.domain for node in model.graph.node if node.op_type.startswith("PerToken")}
    assert domains == {"edgeformer"}


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("bert", {"SelfAttention", "PostLayerNorm", "MatMulNBitsBias"}),
        ("t5", {"SelfAttention", "AddRMSNorm"}),
        ("llama", {"CachedAttention", "AddRMSNorm", "MatMulNBits"}),
    ],
)
def test_attention_and_norms_are_functions_too(graph_of, name, functions):
    calls = function_calls(graph_of(name))
    called = {function for function, _ in calls.graph if not function.startswith("PerToken")}
    assert called == functions
    assert calls.only_light


def test_all_heavy_work_of_a_seq2seq_decoder_is_in_functions(graph_of):
    calls = function_calls(graph_of("t5").parent / "decoder_model.onnx")
    assert {name for name, _ in calls.graph} == {"MatMulNBits", "CachedAttention", "SourceAttention", "AddRMSNorm"}
    assert calls.only_light


def feeds_of(session):
    """Tokens of two texts, the second of which is padded, and empty caches."""
    ids = np.random.default_rng(0).integers(3, 97, (2, 21))
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    values["attention_mask"][1, 13:] = 0
    shapes = {each.name: each.shape for each in session.get_inputs()}
    return {
        name: values[name] if name in values else np.zeros((2, shape[1], 0, shape[3]), np.float32)
        for name, shape in shapes.items()
    }


def run_graph(path, library=None):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(library)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds_of(session))


@pytest.mark.parametrize("name", MODELS)
def test_bodies_compute_what_plain_nodes_do_bit_for_bit(graph_of, make_model, tmp_path, monkeypatch, name):
    rules = tuple(rule for rule in op_set.RULES if rule not in (call_kernels, call_per_token_kernels))
    monkeypatch.setattr(op_set, "RULES", rules)
    family, auto, options, graph, _ = MODELS[name]
    limits = {"context_length": 64} if name == "t5" else {}
    folder = make_model(family, auto=auto, **options)
    export_model(folder, tmp_path / "plain", precision="int8", quantization=PER_TOKEN, verify=None, **limits)
    assert not onnx.load(tmp_path / "plain" / graph, load_external_data=False).functions
    for plain, called in zip(run_graph(tmp_path / "plain" / graph), run_graph(graph_of(name)), strict=True):
        np.testing.assert_array_equal(called, plain)


def random_call(function, *, hidden=70, inputs=100, outputs=35, rows=None, **changes):
    """A graph of one call of a function over random weights; and what it reads, [rows, inputs]."""
    random = np.random.default_rng(len(function.name))
    sizes = {"K": inputs, "F": hidden, "N": outputs}
    shapes = {"gate": (inputs, hidden), "up": (inputs, hidden), "down": (hidden, outputs), "B": (inputs, outputs)}
    weights = {}
    for name in function.input[1:]:
        part = name.partition("_")[0]
        shape = shapes["B" if part in ("scales", "bias") else part]
        if "scales" in name:
            weights[name] = random.uniform(1e-4, 1e-3, shape[1]).astype(np.float32)
        elif "bias" in name:
            weights[name] = random.normal(size=shape[1]).astype(np.float32)
        else:
            weights[name] = random.integers(-128, 128, shape, np.int8)
    weights |= changes.pop("weights", {})
    attributes = {name: sizes[name] for name in function.attribute} | changes
    node = make_node(function.name, ["A", *weights], ["Y"], domain=function.domain, **attributes)
    graph = make_graph(
        [node],
        "g",
        [make_tensor_value_info("A", TensorProto.FLOAT, None)],
        [make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        [from_array(value, name) for name, value in weights.items()],
    )
    opsets = [*function.opset_import, onnx.helper.make_opsetid(function.domain, 1)]
    model = make_model(graph, opset_imports=opsets, ir_version=10, functions=[function])
    return model.SerializeToString(), random.normal(size=(*(rows or (3,)), inputs)).astype(np.float32)


def open_graph(graph, library=None):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(library)
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


CALLED = sorted((function, name) for name in MODELS for function in MODELS[name][-1])


@pytest.mark.parametrize(("function", "name"), CALLED)
@pytest.mark.parametrize("rows", [(1,), (2, 7), (130,)])
def test_a_kernel_computes_what_the_body_does(graph_of, library, function, name, rows):
    graph, x = random_call(functions_of(graph_of(name))[function], rows=rows)
    body, kernel = (open_graph(graph, each).run(None, {"A": x})[0] for each in (None, library))
    assert kernel.shape == body.shape == (*rows, 35)
    # An activation differs by a unit in its last place, and then a number of a feed-forward may round the other way.
    close = np.abs(kernel - body).max(-1) <= 1e-6 * np.abs(body).max(-1)
    assert close.mean() > (0.9 if "FeedForward" in function else 0.999)
    assert np.abs(kernel - body).max() <= 0.01 * np.abs(body).max()


def test_product_rows_equal_the_body_bit_for_bit_without_bias(graph_of, library):
    graph, x = random_call(functions_of(graph_of("llama"))["PerTokenMatMul"], rows=(50,))
    body, kernel = (open_graph(graph, each).run(None, {"A": x})[0] for each in (None, library))
    np.testing.assert_array_equal(kernel, body)


def test_no_rows_are_no_work(graph_of, library):
    graph, x = random_call(functions_of(graph_of("bert"))["PerTokenFeedForwardGeluBias"], rows=(2, 0))
    assert open_graph(graph, library).run(None, {"A": x})[0].shape == (2, 0, 35)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"K": 99}, "B has 3500 elements; these attributes want 3465"),
        ({"N": 0}, "N is 0"),
        ({"weights": {"scales": np.full(35, np.inf, np.float32)}}, "a scale is not finite"),
        ({"weights": {"scales": np.ones(34, np.float32)}}, "scales has 34 elements; these attributes want 35"),
    ],
)
def test_wrong_sizes_are_refused_when_a_session_is_opened(graph_of, library, changes, message):
    graph, _ = random_call(functions_of(graph_of("llama"))["PerTokenMatMul"], **changes)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::PerTokenMatMul: {message}"):
        open_graph(graph, library)


def test_other_inputs_are_refused_when_it_runs(graph_of, library):
    function = functions_of(graph_of("llama"))["PerTokenGatedFeedForwardSilu"]
    graph, x = random_call(function)
    with pytest.raises(onnxruntime_errors(), match="the last dimension of A must be K, 100"):
        open_graph(graph, library).run(None, {"A": x[:, :50]})


def test_inlined_functions_are_the_same_graph(graph_of, tmp_path):
    model = onnx.load(graph_of("bert"))
    inlined = inline_functions(model)
    assert not inlined.functions
    onnx.save(inlined, tmp_path / "inlined.onnx")
    for once, again in zip(run_graph(graph_of("bert")), run_graph(tmp_path / "inlined.onnx"), strict=True):
        np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize("name", MODELS)
def test_a_verification_judges_the_kernels_too(graph_of, installed, library, name):
    installed(library)
    path = graph_of(name)
    report = verify(path.parent.parent, mode="quick")
    assert report.passed, report.describe()
    levels = [level for level in kernels.find_library().levels if level != "plain"]
    assert list(report.kernel_checks()) == levels
    assert "PerTokenMatMul" in report.describe()
