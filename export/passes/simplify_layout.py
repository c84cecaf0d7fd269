"""Remove changes of layout that undo each other.

Modules that were not written for our ops arrange heads for their own ops, [B, S, H·D] → [B, S, H, D] → [B, H, S, D],
and arrange them back for the next op. After this pass a projection leads straight to the op that reads it:

    Reshape to a known shape                → a constant shape: 0 for unchanged dimensions, at most one −1
    Slice from 0 to the end                 → removed
    Transpose → Transpose                   → one or none
    Reshape → Reshape                       → one or none
    Transpose of leading axes → RMSNorm     → RMSNorm → Transpose

Requires the shapes that the exporter noted; a node without them stays as it is. The elements stay the same, only their
arrangement between nodes changes.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dtype_of, producer, remove_if_unused, streamed
from edgeformer.export.graph.pass_report import PassReport

CREATOR = "rewritten by simplify_layout"
INT32_MAX = 2**31 - 1
"""A Slice whose end is at least this reads to the end of the axis; torch writes 2**63 − 1."""


def simplify_layout(model: ir.Model) -> PassReport:
    """Simplify until nothing changes; the report counts the removed nodes."""
    report = PassReport("simplify_layout")
    before = len(model.graph)
    # A change may make another one possible, and every change leaves fewer or simpler nodes.
    changed = True
    while changed:
        changed = False
        for node in list(model.graph):
            if node.graph is not None:
                changed |= _simplify(model, node)
    common_passes.RemoveUnusedNodesPass()(model)
    report.changed = before - len(model.graph)
    return report


def _simplify(model: ir.Model, node: ir.Node) -> bool:
    """Simplify one node together with the one before it; return whether anything changed."""
    rule = RULES.get((node.domain, node.op_type))
    return rule is not None and not node.outputs[0].is_graph_output() and rule(model, node)


def _reshape(model: ir.Model, node: ir.Node) -> bool:
    before = producer(node.inputs[0], "Reshape")
    x, y = (node if before is None else before).inputs[0], node.outputs[0]
    assert x is not None
    if x.shape is None or y.shape is None:
        return False
    if x.shape == y.shape:
        return _bypass(model, node, x)
    sizes = _sizes(x.shape, y.shape)
    current = constant_integers(node.inputs[1])
    if sizes is None or (before is None and current is not None and current.tolist() == sizes):
        return False
    emit = NodeBuilder.replacing(node, CREATOR)
    return _replace(model, node, emit, emit("Reshape", x, emit.constant(sizes)))


def _sizes(before: ir.Shape, after: ir.Shape) -> list[int] | None:
    """The constant shape of a Reshape; None where two dimensions would have to be inferred."""
    sizes = [
        size if isinstance(size, int) else 0 if index < len(before) and before[index] == size else -1
        for index, size in enumerate(after)
    ]
    # Dimensions without a name may differ, although they compare equal.
    unnamed = any(not isinstance(size, int) and size.value is None for size in (*before, *after))
    return None if unnamed or sizes.count(-1) > 1 else sizes


def _transpose(model: ir.Model, node: ir.Node) -> bool:
    before = producer(node.inputs[0], "Transpose")
    if before is None or streamed(before.inputs[0]) is not None:
        return False
    x = before.inputs[0]
    assert x is not None
    inner, outer = (list(each.attributes.get_ints("perm")) for each in (before, node))
    combined = [inner[axis] for axis in outer]
    if combined == sorted(combined):
        return _bypass(model, node, x)
    emit = NodeBuilder.replacing(node, CREATOR)
    return _replace(model, node, emit, emit("Transpose", x, perm=combined))


def _slice(model: ir.Model, node: ir.Node) -> bool:
    x, (starts, ends) = node.inputs[0], (constant_integers(value) for value in node.inputs[1:3])
    steps = constant_integers(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    if x is None or starts is None or ends is None or steps is None:
        return False
    whole = not starts.any() and (ends >= INT32_MAX).all() and (steps == 1).all()
    return bool(whole) and _bypass(model, node, x)


def _norm_before_transpose(model: ir.Model, norm: ir.Node) -> bool:
    transpose = producer(norm.inputs[0], "Transpose")
    if transpose is None or len(transpose.outputs[0].uses()) != 1:
        return False
    x, perm = transpose.inputs[0], list(transpose.attributes.get_ints("perm"))
    if x is None or x.shape is None or perm[-1] != len(perm) - 1:
        return False
    emit = NodeBuilder.replacing(norm, CREATOR)
    epsilon = norm.attributes.get_float("epsilon")
    normed = emit("RMSNorm", x, *norm.inputs[1:], domain=DOMAIN, epsilon=epsilon)
    normed.dtype, normed.shape = dtype_of(norm.outputs[0]), x.shape
    return _replace(model, norm, emit, emit("Transpose", normed, perm=perm))


RULES = {
    ("", "Reshape"): _reshape,
    ("", "Transpose"): _transpose,
    ("", "Slice"): _slice,
    (DOMAIN, "RMSNorm"): _norm_before_transpose,
}


def _bypass(model: ir.Model, node: ir.Node, x: ir.Value) -> bool:
    if x.shape is None:
        x.shape = node.outputs[0].shape
    return _redirect(model, node, x)


def _replace(model: ir.Model, node: ir.Node, emit: NodeBuilder, output: ir.Value) -> bool:
    output.type, output.shape = node.outputs[0].type, node.outputs[0].shape
    model.graph.insert_before(node, emit.nodes)
    return _redirect(model, node, output)


def _redirect(model: ir.Model, node: ir.Node, output: ir.Value) -> bool:
    """Let the readers of a node read `output`; remove the node and, where nothing else reads it, the one before."""
    ir.convenience.replace_all_uses_with(node.outputs[0], output)
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    remove_if_unused(model, node, before)
    return True


def constant_integers(value: ir.Value | None) -> np.ndarray | None:
    """Return the integers that small nodes compute from constants; None where they depend on inputs."""
    if value is None or streamed(value) is not None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type == "Constant":
        tensor = node.attributes.get("value")
        return None if tensor is None else tensor.as_tensor().numpy()
    if node.op_type not in ("Cast", "Reshape", "Squeeze", "Unsqueeze", "Concat"):
        return None
    parts: Sequence[np.ndarray | None] = [constant_integers(each) for each in node.inputs]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    # The values of these nodes are a few numbers in a row, so their shape does not matter.
    return np.concatenate([part.reshape(-1) for part in (known if node.op_type == "Concat" else known[:1])])
