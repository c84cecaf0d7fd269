"""Integer products are exact on every CPU, or onnxruntime is asked for exact ones."""

import base64
import platform

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from edgeformer.runtime.sessions import session
from edgeformer.runtime.sessions.int8_saturation import EXACT, GRAPH, INPUTS, ROWS, products_saturate

TEXT = """<ir_version: 8, opset_import: ["" : 13]>
overflow (uint8[m, 64] a) => (int32[m, 16] c) <int64[2] shape = {64, 16}>
{
    b = ConstantOfShape <value: tensor = int8[1] {127}> (shape)
    c = MatMulInteger(a, b)
}"""


class Clipping:
    """onnxruntime on a CPU that adds products in pairs of 16 bits."""

    SessionOptions = ort.SessionOptions

    class InferenceSession(ort.InferenceSession):
        def run(self, names, feeds):
            right = np.full((INPUTS, 16), 127, np.int64)
            pairs = (feeds["a"].astype(np.int64)[:, :, None] * right).reshape(ROWS, INPUTS // 2, 2, 16).sum(2)
            return [np.clip(pairs, -(2**15), 2**15 - 1).sum(1).astype(np.int32)]


@pytest.fixture(autouse=True)
def fresh():
    products_saturate.cache_clear()
    yield
    products_saturate.cache_clear()


def test_the_graph_is_what_the_comment_says():
    model = onnx.parser.parse_model(TEXT)
    onnx.checker.check_model(model)
    assert model.SerializeToString() == base64.b64decode(GRAPH)
    assert 2 * 255 * 127 > 2**15 - 1, "a pair of its products does not fit into 16 bits"


def test_a_cpu_that_clips_is_told_from_one_that_does_not():
    assert products_saturate(Clipping)
    products_saturate.cache_clear()
    exact = ort.InferenceSession(base64.b64decode(GRAPH)).run(None, {"a": np.full((1, INPUTS), 255, np.uint8)})[0]
    assert products_saturate(ort) == (exact != EXACT).any()


@pytest.mark.parametrize("clips", [True, False])
def test_sessions_ask_for_exact_products_only_where_others_clip(monkeypatch, clips):
    monkeypatch.setattr(session, "products_saturate", lambda package: clips)
    options = session.session_options(1)
    if clips:
        assert options.get_session_config_entry("session.x64quantprecision") == "1"
    else:
        with pytest.raises(RuntimeError, match="does not have configuration"):
            options.get_session_config_entry("session.x64quantprecision")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="2026-11-22: only x86 has products that clip")
@pytest.mark.parametrize(("clips", "element"), [(True, onnx.TensorProto.UINT8), (False, onnx.TensorProto.INT8)])
def test_products_of_unsigned_bytes_are_the_same(monkeypatch, tmp_path, clips, element):
    monkeypatch.setattr(session, "products_saturate", lambda package: clips)
    random = np.random.default_rng(0)
    left, right = (
        random.integers(1, 256, (5, 64)).astype(np.uint8),
        random.integers(-128, 128, (64, 32)).astype(np.int8),
    )
    values = {"b": right, "one": np.float32(1), "scales": np.ones(32, np.float32), "zero": np.uint8(128)}
    node = helper.make_node("MatMulIntegerToFloat", ["a", "b", "one", "scales", "zero"], ["c"], domain="com.microsoft")
    graph = helper.make_graph(
        [node], "product", [helper.make_tensor_value_info("a", onnx.TensorProto.UINT8, ["m", 64])],
        [helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, ["m", 32])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )  # fmt: skip
    model = helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    )
    options = session.session_options(1)
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    (found,) = ort.InferenceSession(model.SerializeToString(), options).run(None, {"a": left})
    assert np.array_equal(found, (left.astype(np.int64) - 128) @ right.astype(np.int64))
    product = onnx.load(tmp_path / "run.onnx").graph
    assert next(each.data_type for each in product.initializer if list(each.dims) == [64, 32]) == element
