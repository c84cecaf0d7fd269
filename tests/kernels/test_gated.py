"""Products with what is done with them, and norms with a sum: kernels agree with the functions of exported graphs."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto, load
from onnx.helper import make_attribute, make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from onnxruntime import InferenceSession, SessionOptions
from test_mat_mul_n_bits import random_weights, session_of

from edgeformer.export.lower.ort.kernels.epilogues import BIAS, BIAS_GELU, GEGLU, SWIGLU, Epilogue, function_with
from edgeformer.export.lower.ort.kernels.feed_forwards import feed_forward_function
from edgeformer.export.lower.ort.kernels.kernel_nodes import LAYER_NORM, POST_LAYER_NORM, PRODUCT, RMS_NORM
from edgeformer.export.lower.ort.kernels.split_norms import split_norm_function
from edgeformer.runtime.sessions.session import onnxruntime_errors

ROUNDED = ir.AttrInt64("accuracy_level", 4)
OPSETS = [make_opsetid(domain, version) for domain, version in (("", 20), ("edgeformer", 1), ("com.microsoft", 1))]


def model_of(node, function, inputs, outputs, weights=()):
    floats = [[make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names] for names in (inputs, outputs)]
    graph = make_graph([node], "g", *floats, [from_array(value, name) for name, value in weights])
    functions = [ir.serde.serialize_function(function)]
    return make_model(graph, opset_imports=OPSETS, ir_version=9, functions=functions).SerializeToString()


def product_graph(parts, approximate=None, bias=None, **sizes):
    """A graph of one call of a product with a bias, or a gated one, and its function. approximate: that of Gelu."""
    attribute = None if approximate is None else ir.AttrString("approximate", approximate)
    names = (SWIGLU, GEGLU) if bias is None else (BIAS, BIAS_GELU)
    added = None if bias is None else ir.Value(name="bias")
    function = function_with(PRODUCT.body([ROUNDED]), Epilogue([], names[approximate is not None], added, attribute))
    inputs = ["A", *parts]
    if bias is not None:
        inputs += [""] * (4 - len(inputs)) + ["bias"]
        parts = parts | {"bias": bias}
    node = make_node(function.name, inputs, ["Y"], domain="edgeformer", **sizes)
    if approximate is not None:
        node.attribute.append(make_attribute("approximate", approximate, attr_type=AttributeProto.STRING))
    return model_of(node, function, ["A"], ["Y"], parts.items())


def check_products(library, graph, inputs, outputs, most=2e-3):
    """A kernel agrees with its function for few rows and many, and would not with outputs in another order.

    most: scales are halves, and sums of products differ by 5e-4 of their magnitudes.
    """
    body, kernel = session_of(graph), session_of(graph, library)
    for rows in (1, 5, 150):
        x = np.random.default_rng(rows).standard_normal((rows, inputs)).astype(np.float32)
        expected, found = body.run(None, {"A": x})[0], kernel.run(None, {"A": x})[0]
        assert found.shape == (rows, outputs)
        error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
        assert error < most
        exchanged = np.roll(found, outputs // 2, axis=-1)
        assert np.sqrt(np.mean((exchanged - expected) ** 2) / np.mean(expected**2)) > 0.1, "a bound that cannot fail"


@pytest.mark.parametrize("approximate", [None, "none", "tanh"])
@pytest.mark.parametrize(("half", "zero_points"), [(64, False), (96, True)])
def test_a_gated_product_agrees_with_its_function(library, approximate, half, zero_points):
    parts = random_weights(2 * half, 128, 4, 32, zero_points=zero_points)
    parts["scales"] *= 0.02
    check_products(library, product_graph(parts, approximate, K=128, N=2 * half, bits=4, block_size=32), 128, half)


@pytest.mark.parametrize("approximate", [None, "none", "tanh"])
@pytest.mark.parametrize(("outputs", "bits", "zero_points"), [(64, 4, False), (70, 8, True), (7, 8, False)])
def test_a_product_with_a_bias_agrees_with_its_function(library, approximate, outputs, bits, zero_points):
    parts = random_weights(outputs, 128, bits, 32, zero_points=zero_points)
    parts["scales"] *= 0.02 if bits == 4 else 0.002
    bias = np.random.default_rng(0).standard_normal(outputs).astype(np.float32)
    graph = product_graph(parts, approximate, bias, K=128, N=outputs, bits=bits, block_size=32)
    check_products(library, graph, 128, outputs)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(("hidden", "zero_points"), [(256, False), (70, True)])
def test_a_feed_forward_agrees_with_its_function(library, approximate, hidden, zero_points):
    random, attribute = np.random.default_rng(0), ir.AttrString("approximate", approximate)
    epilogues = {
        "up": Epilogue([], BIAS_GELU, ir.Value(name="bias"), attribute),
        "down": Epilogue([], BIAS, ir.Value(name="bias")),
    }
    function = feed_forward_function({
        name: function_with(PRODUCT.body([ROUNDED]), epilogue) for name, epilogue in epilogues.items()
    })  # fmt: skip
    sizes = {"K": 96, "F": hidden, "N": 40, "bits": 8, "block_size": 32, "down_bits": 4, "down_block_size": 16}
    weights = {}
    for name, outputs, inputs, bits, block in (("up", hidden, 96, 8, 32), ("down", 40, hidden, 4, 16)):
        parts = random_weights(outputs, inputs, bits, block, zero_points=zero_points)
        parts["scales"] *= 0.002 if bits == 8 else 0.02
        parts["bias"] = random.standard_normal(outputs).astype(np.float32)
        weights |= {f"{name}_{part}": parts[part] for part in parts}
    names = [value.name if value.name in weights else "" for value in function.inputs[1:]]
    node = make_node(function.name, ["A", *names], ["Y"], domain="edgeformer", approximate=approximate, **sizes)
    graph = model_of(node, function, ["A"], ["Y"], weights.items())
    # A hidden number that lies between two integers may round the other way.
    check_products(library, graph, 96, 40, most=4e-3)


def test_a_bias_of_another_length_is_refused(library):
    parts = random_weights(64, 64, 4, 32, zero_points=False)
    graph = product_graph(parts, None, np.zeros(63, np.float32), K=64, N=64, bits=4, block_size=32)
    with pytest.raises(onnxruntime_errors(), match="edgeformer::MatMulNBitsBias: bias "):
        session_of(graph, library)


def test_halves_that_are_no_panels_are_refused(library):
    parts = random_weights(2 * 40, 64, 4, 32, zero_points=False)
    with pytest.raises(onnxruntime_errors(), match="edgeformer::MatMulNBitsSwiGLU: N must be a multiple of 64"):
        session_of(product_graph(parts, K=64, N=80, bits=4, block_size=32), library)


NORMS = {"RMS": (RMS_NORM, False), "layer": (LAYER_NORM, True), "layer, no bias": (LAYER_NORM, False)}
NORMS |= {"post": (POST_LAYER_NORM, True), "post, no bias": (POST_LAYER_NORM, False)}
"""Kernels by name, and whether there is a bias."""


def norm_graph(norm):
    kernel, bias = NORMS[norm]
    inputs, outputs = kernel.inputs[: 4 if bias else 3], [name for name in kernel.outputs if name]
    node = make_node(kernel.name, inputs, outputs, domain="edgeformer", epsilon=1e-5)
    return model_of(node, kernel.definition([]), inputs, outputs)


def norm_feeds(norm, rows):
    random = np.random.default_rng(0)
    shapes = {"input": (1, rows, 200), "skip": (1, rows, 200), "gamma": (200,), "beta": (200,)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) + 1 for name, shape in shapes.items()}
    return {name: value for name, value in feeds.items() if name != "beta" or NORMS[norm][1]}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_a_norm_agrees_with_its_function(library, norm, rows):
    feeds = norm_feeds(norm, rows)
    expected, found = (session_of(norm_graph(norm), each).run(None, feeds) for each in (None, library))
    assert len(found) == (1 if norm.startswith("post") else 2)
    np.testing.assert_allclose(found[0], expected[0], rtol=4e-6, atol=4e-6)
    for sums, of_function in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(sums, of_function)
    assert rows == 0 or np.abs(found[0] - feeds["input"] - feeds["skip"]).max() > 0.1


@pytest.mark.parametrize(
    ("norm", "name", "shape", "message"),
    [
        ("RMS", "skip", (1, 1, 200), "AddRMSNorm: input and skip must have"),
        ("RMS", "gamma", (199,), "AddRMSNorm: gamma must have as many numbers"),
        ("layer", "beta", (199,), "AddLayerNorm: beta must have as many numbers as gamma"),
        ("post", "gamma", (1,), "PostLayerNorm: beta must have as many numbers as gamma"),
    ],
)
def test_wrong_shapes_of_a_norm_are_errors(library, norm, name, shape, message):
    feeds = norm_feeds(norm, 2) | {name: np.ones(shape, np.float32)}
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::{message}"):
        session_of(norm_graph(norm), library).run(None, feeds)


def split_graph(heads=5, kv_heads=2, size=24, gammas=()):
    """A graph of a split of so many heads of queries, keys and values. gammas: names and values of those it holds."""
    inputs = ["A", "query_gamma", "key_gamma"]
    node = make_node(
        "SplitRMSNorm", [*inputs, "split", "heads"], ["query", "key", "value"], domain="edgeformer", epsilon=1e-6
    )
    sizes = {"split": [heads * size, kv_heads * size, kv_heads * size], "heads": [0, 0, -1, size]}
    stored = [(name, np.array(value, np.int64)) for name, value in sizes.items()]
    return model_of(node, split_norm_function(), inputs[: 3 - len(gammas)], list(node.output), [*stored, *gammas])


def split_feeds(rows, tokens):
    random = np.random.default_rng(tokens)
    shapes = {"A": (rows, tokens, 9 * 24), "query_gamma": (24,), "key_gamma": (24,)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (3, 1), (1, 700)])
def test_a_split_with_norms_agrees_with_its_function(library, rows, tokens):
    feeds = split_feeds(rows, tokens)
    expected, found = (session_of(split_graph(), each).run(None, feeds) for each in (None, library))
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-6, atol=1e-7)
    assert np.array_equal(found[2], feeds["A"][..., -48:])
    exchanged = feeds | {"query_gamma": feeds["key_gamma"]}
    assert np.abs(session_of(split_graph(), library).run(None, exchanged)[0] - expected[0]).max() > 0.1


def test_onnxruntime_makes_norms_of_the_body_of_a_split(tmp_path):
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.onnx")
    gammas = [(name, np.ones(24, np.float32)) for name in ("query_gamma", "key_gamma")]
    InferenceSession(split_graph(gammas=gammas), options)
    ops = [node.op_type for node in load(tmp_path / "model.onnx").graph.node]
    assert (ops.count("SimplifiedLayerNormalization"), ops.count("Sqrt")) == (2, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": (1, 1, 7 * 24)}, "A must have 3 dimensions, the last of 216"),
        ({"A": (1, 9 * 24)}, "A must have 3 dimensions, the last of 216"),
        ({"key_gamma": (23,)}, "query_gamma and key_gamma must be of one head each"),
        ({"query_gamma": (25,), "key_gamma": (25,)}, "queries and keys must be whole heads"),
    ],
)
def test_wrong_shapes_of_a_split_are_errors(library, changes, message):
    feeds = split_feeds(1, 1) | {name: np.ones(shape, np.float32) for name, shape in changes.items()}
    with pytest.raises(onnxruntime_errors(), match=f"SplitRMSNorm: {message}"):
        session_of(split_graph(), library).run(None, feeds)
