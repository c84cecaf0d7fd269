"""Ops without a bfloat16 kernel on CUDA compute in float32; what their graph returns is the same."""

import onnx
import onnx_ir as ir
import pytest

from edgeformer.check.providers.audit import audit_graph
from edgeformer.check.providers.kernel_table import kernel_table
from edgeformer.export.lower.widen_bfloat16 import widen_bfloat16


def graph(kind):
    """x → Abs → Pad → TopK → values, indices; and where x is less than its pads."""
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    g ({kind}[2, 3] x, int64[4] pads, int64[1] k) => ({kind}[2, 1] values, int64[2, 1] indices, bool[2, 3] less)
    {{
        a = Abs(x)
        p = Pad(a, pads)
        values, indices = TopK(p, k)
        less = Less(x, a)
    }}
    """
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


def findings(model):
    return audit_graph("g", ir.serde.serialize_model(model), kernel_table()).findings


def test_casts_are_put_around_them():
    model = graph("bfloat16")
    assert [str(each) for each in findings(model) if "no kernel for T = bfloat16" in str(each)]
    assert widen_bfloat16(model).changed == 3
    ops = [node.op_type for node in model.graph]
    assert ops == ["Abs", "Cast", "Pad", "Cast", "Cast", "TopK", "Cast", "Cast", "Cast", "Less"]
    assert findings(model) == ()
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(proto, strict_mode=True), full_check=True)


@pytest.mark.parametrize("kind", ["float16", "float"])
def test_graphs_of_other_types_are_left_alone(kind):
    model = graph(kind)
    assert widen_bfloat16(model).changed == 0
    assert [node.op_type for node in model.graph] == ["Abs", "Pad", "TopK", "Less"]
