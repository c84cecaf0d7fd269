"""Softplus in a graph for WebGPU, whose kernel is off by a unit roundoff of 1 for small results, too."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeformer.export.lower import LoweringOptions
from edgeformer.export.lower.softplus import POLYNOMIAL, lower_softplus

UNIT = 2.0**-24
GRAPH = '<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { %s }'
KERNEL = "one = Constant <value = float {1}> () e = Exp (x) sum = Add (e, one) y = Log (sum)"
"""This is the formula of WebGPU's kernel (plugin 0.4.0, unary_elementwise_ops.cc)."""
NUMBERS = np.concatenate([np.linspace(-80, 80, 4001), np.linspace(-1, 1, 4001)]).astype(np.float32)


def graph(body="y = Softplus (x)"):
    return onnx.parser.parse_model(GRAPH % body)


def lowered(model, provider="webgpu"):
    model = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model))
    report = lower_softplus(model, LoweringOptions(provider=provider))
    return report.changed, ir.serde.serialize_model(model)


def error(model):
    """Return the largest error, in unit roundoffs of the result."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": NUMBERS})
    exact = np.logaddexp(0, NUMBERS.astype(np.float64))
    return np.max(np.abs(found - exact) / exact) / UNIT


def test_small_results_keep_their_digits():
    changed, model = lowered(graph())
    assert changed and error(model) < 8
    assert error(graph(KERNEL)) > 1000


@pytest.mark.parametrize("place", range(len(POLYNOMIAL)))
def test_a_wrong_coefficient_is_found(monkeypatch, place):
    wrong = [each * (1 + 5e-2 * (index == place)) for index, each in enumerate(POLYNOMIAL)]
    monkeypatch.setattr("edgeformer.export.lower.softplus.POLYNOMIAL", tuple(wrong))
    assert error(lowered(graph())[1]) > 8


def test_another_provider_has_the_op():
    assert not lowered(graph(), "cpu")[0]
