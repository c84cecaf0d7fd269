"""The tanh of a soft-cap in a graph for WebGPU, whose kernel is off by a unit roundoff for small numbers, too."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeformer.export.lower import LoweringOptions
from edgeformer.export.lower.soft_cap import POLYNOMIAL, lower_soft_cap

CAP, UNIT = 30.0, 2.0**-24
GRAPH = """<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (float[n] y)
<float cap = {CAP}> {{ scaled = Div (x, cap) {curve} }}"""
KERNEL = """two = Constant <value = float {2}> () one = Constant <value = float {1}> ()
size = Abs (scaled) twice = Mul (size, two) fall = Neg (twice) e = Exp (fall) up = Sub (one, e) down = Add (one, e)
ratio = Div (up, down) sign = Sign (scaled) curve = Mul (sign, ratio) y = Mul (curve, cap)"""
"""This is the formula of WebGPU's kernel (plugin 0.4.0, unary_elementwise_ops.cc)."""
LOGITS = np.concatenate([scale * np.linspace(-1, 1, 4001) for scale in (1e-3, 1.0, 18.0, 100.0)]).astype(np.float32)


def graph(curve, cap="{30}"):
    return onnx.parser.parse_model(GRAPH.format(CAP=cap, curve=curve))


def lowered(model, provider="webgpu"):
    model = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model))
    report = lower_soft_cap(model, LoweringOptions(provider=provider))
    return report.changed, ir.serde.serialize_model(model)


def error(model):
    """Return the largest error of a logit, in unit roundoffs of it."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": LOGITS})
    exact = CAP * np.tanh(LOGITS.astype(np.float64) / CAP)
    nonzero = LOGITS != 0
    assert not found[~nonzero].any()
    return np.max(np.abs(found - exact)[nonzero] / np.abs(exact[nonzero])) / UNIT


def test_small_logits_keep_their_digits():
    changed, model = lowered(graph("curve = Tanh (scaled) y = Mul (curve, cap)"))
    assert changed and error(model) < 8
    assert error(graph(KERNEL)) > 1000


def test_a_wrong_coefficient_is_found(monkeypatch):
    wrong = (*POLYNOMIAL[:-1], POLYNOMIAL[-1] * 1.00001)
    monkeypatch.setattr("edgeformer.export.lower.soft_cap.POLYNOMIAL", wrong)
    assert error(lowered(graph("curve = Tanh (scaled) y = Mul (curve, cap)"))[1]) > 8


@pytest.mark.parametrize(
    ("curve", "cap", "provider"),
    [
        ("curve = Tanh (scaled) y = Mul (curve, cap)", "{30}", "cpu"),
        ("curve = Tanh (scaled) y = Mul (curve, cap)", "{0.5}", "webgpu"),
        ("curve = Tanh (scaled) y = Mul (curve, x)", "{30}", "webgpu"),
        ("curve = Tanh (scaled) larger = Mul (curve, cap) y = Add (larger, curve)", "{30}", "webgpu"),
        ("y = Tanh (scaled)", "{30}", "webgpu"),
    ],
    ids=["another provider", "made smaller", "by no constant", "read elsewhere", "not read"],
)
def test_another_tanh_stays(curve, cap, provider):
    assert not lowered(graph(curve, cap), provider)[0]
