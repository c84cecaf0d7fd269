"""Gated products and norms with a sum: kernels agree with the functions of exported graphs."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto
from onnx.helper import make_attribute, make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from test_mat_mul_n_bits import random_weights, session_of

from edgeformer.export.lower.ort.kernel_functions import NORM, PRODUCT, gated_function
from edgeformer.runtime.session import onnxruntime_errors

ROUNDED = ir.AttrInt64("accuracy_level", 4)
OPSETS = [make_opsetid(domain, version) for domain, version in (("", 20), ("edgeformer", 1), ("com.microsoft", 1))]


def model_of(node, function, inputs, outputs, weights=()):
    floats = [[make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names] for names in (inputs, outputs)]
    graph = make_graph([node], "g", *floats, [from_array(value, name) for name, value in weights])
    functions = [ir.serde.serialize_function(function)]
    return make_model(graph, opset_imports=OPSETS, ir_version=9, functions=functions).SerializeToString()


def gated(parts, approximate=None, **sizes):
    """A graph of one call of a gated product, and its function."""
    attribute = None if approximate is None else ir.AttrString("approximate", approximate)
    function = gated_function(PRODUCT.body([ROUNDED]), attribute)
    node = make_node(function.name, ["A", *parts], ["Y"], domain="edgeformer", **sizes)
    if approximate is not None:
        node.attribute.append(make_attribute("approximate", approximate, attr_type=AttributeProto.STRING))
    return model_of(node, function, ["A"], ["Y"], parts.items())


@pytest.mark.parametrize("approximate", [None, "none", "tanh"])
@pytest.mark.parametrize(("half", "zero_points"), [(64, False), (96, True)])
def test_a_gated_product_agrees_with_its_function(library, approximate, half, zero_points):
    parts = random_weights(2 * half, 128, 4, 32, zero_points=zero_points)
    parts["scales"] *= 0.02
    graph = gated(parts, approximate, K=128, N=2 * half, bits=4, block_size=32)
    body, kernel = session_of(graph), session_of(graph, library)
    for rows in (1, 5, 150):
        x = np.random.default_rng(rows).standard_normal((rows, 128)).astype(np.float32)
        expected, found = body.run(None, {"A": x})[0], kernel.run(None, {"A": x})[0]
        assert found.shape == (rows, half)
        error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
        assert error < 2e-3, "scales are halves, and sums of products differ by 5e-4 of their magnitudes"
        exchanged = np.roll(found, half // 2, axis=-1)
        assert np.sqrt(np.mean((exchanged - expected) ** 2) / np.mean(expected**2)) > 0.1, "a bound that cannot fail"


def test_halves_that_are_no_panels_are_refused(library):
    parts = random_weights(2 * 40, 64, 4, 32, zero_points=False)
    with pytest.raises(onnxruntime_errors(), match="edgeformer::MatMulNBitsSwiGLU: N must be a multiple of 64"):
        session_of(gated(parts, K=64, N=80, bits=4, block_size=32), library)


def norm_graph():
    outputs = [name for name in NORM.outputs if name]
    node = make_node(NORM.name, NORM.inputs, outputs, domain="edgeformer", epsilon=1e-5)
    return model_of(node, NORM.function([]), NORM.inputs, outputs)


@pytest.mark.parametrize("rows", [1, 300])
def test_a_norm_agrees_with_its_function(library, rows):
    random = np.random.default_rng(0)
    shapes = {"input": (1, rows, 200), "skip": (1, rows, 200), "gamma": (200,)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (expected, expected_sum), (found, found_sum) = (
        session_of(norm_graph(), each).run(None, feeds) for each in (None, library)
    )
    np.testing.assert_array_equal(found_sum, expected_sum)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
    assert np.abs(found - found_sum).max() > 0.1


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("skip", (1, 1, 200), "input and skip must have"), ("gamma", (199,), "gamma must have as many numbers")],
)
def test_wrong_shapes_of_a_norm_are_errors(library, name, shape, message):
    feeds = {"input": np.ones((1, 2, 200), np.float32), "skip": np.ones((1, 2, 200), np.float32)}
    feeds |= {"gamma": np.ones(200, np.float32)} | {name: np.ones(shape, np.float32)}
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::AddRMSNorm: {message}"):
        session_of(norm_graph(), library).run(None, feeds)
