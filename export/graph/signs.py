"""Show that no number of a value can be negative, from the ops that compute it."""

import onnx_ir as ir

from edgeformer.export.graph.editing import streamed

NEVER_NEGATIVE = {"Abs", "Exp", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt"}
"""Ops whose results are not negative, whatever they are given."""

OF_FIRST = {
    "Cast", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "TopK", "Transpose", "Unsqueeze",
}  # fmt: skip
"""Ops whose numbers are those of the first input, or sums of them."""

OF_ALL = {"Add", "Concat", "Div", "Min", "Mul", "Sum"}
"""Ops whose results are not negative where no input is."""

DEPTH = 40
"""Nodes that are followed back at most."""


def never_negative(value: ir.Value | None, depth: int = DEPTH) -> bool:
    """Return whether no number of a value can be negative; False where nothing shows it."""
    if value is None or depth == 0:
        return False
    node = value.producer()
    if node is None:
        known = None if streamed(value) is not None else value.const_value
        return known is not None and bool((known.numpy() >= 0).all())
    if node.domain:
        return False
    if node.op_type == "Constant":
        tensor = node.attributes.get_tensor("value", None)
        return tensor is not None and bool((tensor.numpy() >= 0).all())
    if node.op_type in NEVER_NEGATIVE:
        return True
    if node.op_type in OF_FIRST:
        return never_negative(node.inputs[0], depth - 1)
    if node.op_type == "Where":
        return all(never_negative(each, depth - 1) for each in node.inputs[1:])
    if node.op_type == "ScatterElements":
        return all(never_negative(node.inputs[place], depth - 1) for place in (0, 2))
    if node.op_type in ("Max", "Clip"):  # of Clip, the lower bound counts like another number
        return any(never_negative(each, depth - 1) for each in node.inputs[:2])
    return node.op_type in OF_ALL and all(never_negative(each, depth - 1) for each in node.inputs)
