"""Products in blocks of a verification's float32 runs: dequantized once, and proved by onnxruntime's own kernel."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeformer.export.parity import block_products
from edgeformer.export.parity.block_products import BlockProducts
from edgeformer.runtime.sessions import session

INPUTS, OUTPUTS = 80, 24
"""Both products have this size; a row of inputs is two and a half blocks of 32 weights."""


def tensors(bits, block, symmetric, seed=0):
    """Return random integers, scales and zero points as MatMulNBits stores them."""
    generator, blocks = np.random.default_rng(seed), -(-INPUTS // block)
    stored = {
        "integers": generator.integers(0, 256, (OUTPUTS, blocks, block * bits // 8), np.uint8),
        "scales": generator.uniform(0.01, 0.02, (OUTPUTS, blocks)).astype(np.float32),
    }
    if not symmetric:
        stored["zeros"] = generator.integers(0, 256, (OUTPUTS, -(-blocks * bits // 8)), np.uint8)
    return stored


def write(folder, stored, bits, block, *, bias=False, half=False):
    """Write a graph of two products of one matrix, with its weights beside it; return its path. half: of its scales."""
    inputs = [*stored, ""][: 3 if bias else len(stored)] + (["", "bias"] if bias else [])
    casts = [helper.make_node("Cast", ["scales"], ["wide"], to=TensorProto.FLOAT)] if half else []
    inputs[1] = "wide" if half else inputs[1]
    sizes = {"K": INPUTS, "N": OUTPUTS, "bits": bits, "block_size": block}
    nodes = [
        helper.make_node("MatMulNBits", [x, *inputs], [y], domain="com.microsoft", accuracy_level=4, **sizes)
        for x, y in (("a", "b"), ("c", "d"))
    ]
    stored = stored | ({"scales": stored["scales"].astype(np.float16)} if half else {})
    values = stored | ({"bias": np.ones(OUTPUTS, np.float32)} if bias else {})
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*casts, *nodes],
        "two products",
        [value(name, TensorProto.FLOAT, ["rows", INPUTS]) for name in "ac"],
        [value(name, TensorProto.FLOAT, ["rows", OUTPUTS]) for name in "bd"],
        [numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    return folder / "model.onnx"


@pytest.fixture
def opened(monkeypatch):
    """A list of the graphs that are opened in place of those of files."""
    graphs, open_session = [], session.open_session

    def remember(*args, rewritten, **options):
        graphs.append(onnx.load_from_string(rewritten.content))
        return open_session(*args, rewritten=rewritten, **options)

    monkeypatch.setattr(block_products, "open_session", remember)
    return graphs


def ops(graph):
    return [node.op_type for node in graph.graph.node]


ROWS = {name: np.random.default_rng(7).normal(size=(5, INPUTS)).astype(np.float32) for name in "ac"}


@pytest.mark.parametrize("half", [False, True], ids=["float32 scales", "float16 scales"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zero points"])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 128), (8, 32), (8, 128)])
def test_products_are_those_of_the_kernel(tmp_path, opened, bits, block, symmetric, half):
    path = write(tmp_path, tensors(bits, block, symmetric), bits, block, half=half)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")  # or it rounds activations
    expected = ort.InferenceSession(path, options).run(None, ROWS)
    products = BlockProducts()
    computed = products.open(path).run(None, ROWS)
    assert ops(opened[0])[-2:] == ["MatMul", "MatMul"] and len(products._matrices) == 1
    for ours, theirs in zip(computed, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


def nibbles_swapped(stored):
    stored["integers"] = (stored["integers"] << 4) | (stored["integers"] >> 4)


def one_integer_off(stored):
    stored["integers"][3, 1, 2] ^= 1


def zero_point_off(stored):
    stored["zeros"][5, 0] ^= 1


def scale_off(stored):
    stored["scales"][7, 2] *= 1.01


@pytest.mark.parametrize("half", [False, True], ids=["float32 scales", "float16 scales"])
@pytest.mark.parametrize(
    "fault", [nibbles_swapped, one_integer_off, zero_point_off, scale_off], ids=lambda f: f.__name__
)
def test_a_matrix_that_the_kernel_reads_otherwise_stays(tmp_path, opened, monkeypatch, fault, half):
    stored = tensors(4, 32, symmetric=False)
    path = write(tmp_path, stored, 4, 32, half=half)
    fault(stored)
    right = block_products.dequantized
    monkeypatch.setattr(block_products, "dequantized", lambda node, *_: right(node, *stored.values()))
    BlockProducts().open(path)
    assert ops(opened[0])[-2:] == ["MatMulNBits", "MatMulNBits"]


def test_products_beyond_the_memory_stay(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(block_products, "LARGEST", 4 * INPUTS * OUTPUTS - 1)
    BlockProducts().open(write(tmp_path, tensors(4, 32, symmetric=True), 4, 32))
    assert ops(opened[0]) == ["MatMulNBits", "MatMulNBits"]


def test_a_product_with_a_bias_stays(tmp_path, opened):
    path = write(tmp_path, tensors(4, 32, symmetric=True), 4, 32, bias=True)
    BlockProducts().open(path)
    assert ops(opened[0]) == ["MatMulNBits", "MatMulNBits"]
