"""Signs of values: what is shown never to be negative, and what is not."""

import numpy as np
import onnx_ir as ir
import pytest

from edgeformer.export.graph.signs import never_negative

FLOAT = ir.DataType.FLOAT


def op(name, *inputs, **attributes):
    return ir.node(name, list(inputs), attributes).outputs[0]


def constant(*numbers):
    return op("Constant", value=ir.tensor(np.array(numbers, np.float32)))


def anything():
    return ir.val("anything", FLOAT, [2, 3])


def chosen(scores):
    """Return the largest two scores over their sum, as most routers do."""
    best = op("TopK", scores, constant(2))
    return op("Div", best, op("Add", op("ReduceSum", best), constant(1e-20)))


SHOWN = {
    "softmax": lambda: op("Softmax", anything()),
    "chosen sigmoids": lambda: chosen(op("Sigmoid", anything())),
    "scaled": lambda: op("Mul", chosen(op("Softmax", anything())), constant(2.5)),
    "gathered by any index": lambda: op("GatherElements", op("Sigmoid", anything()), anything()),
    "not below zero": lambda: op("Max", anything(), constant(0.0)),
    "clipped": lambda: op("Clip", anything(), constant(0.0), constant(1.0)),
    "zeros where it is not chosen": lambda: op("Where", anything(), op("Exp", anything()), constant(0.0)),
}

NOT_SHOWN = {
    "logits": anything,
    "chosen logits": lambda: chosen(anything()),
    "scaled by a negative number": lambda: op("Mul", op("Softmax", anything()), constant(-1.0)),
    "with a bias": lambda: op("Add", op("Sigmoid", anything()), anything()),
    "a difference": lambda: op("Sub", op("Exp", anything()), op("Exp", anything())),
    "a logarithm": lambda: op("Log", op("Sigmoid", anything())),
    "an op of another domain": lambda: ir.node("Softmax", [anything()], domain="other").outputs[0],
    "the other branch": lambda: op("Where", anything(), op("Exp", anything()), anything()),
}


@pytest.mark.parametrize("case", SHOWN)
def test_what_cannot_be_negative_is_shown(case):
    assert never_negative(SHOWN[case]())


@pytest.mark.parametrize("case", NOT_SHOWN)
def test_what_may_be_negative_is_not(case):
    assert not never_negative(NOT_SHOWN[case]())


def test_initializers_are_read():
    for numbers, expected in (([0.0, 2.0], True), ([0.0, -2.0], False)):
        value = ir.val("scale", const_value=ir.tensor(np.array(numbers, np.float32)))
        assert never_negative(op("Mul", op("Exp", anything()), value)) == expected
