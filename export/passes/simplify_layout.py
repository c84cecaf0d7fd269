"""Undo changes of layout that undo each other.

Modules that were not written for our ops lay heads out for their own: [B, S, H·D] → [B, S, H, D] → [B, H, S, D], and
back again for the next op. After this pass a projection leads straight to the op that reads it:

    Reshape, whose output's shape is known       → with a constant shape: 0 for what stays, one −1 at most
    Slice from 0 to the end                      → gone
    Transpose → Transpose                        → one, or none
    Reshape → Reshape                            → one, or none
    Transpose (of leading axes) → RMSNorm        → RMSNorm → Transpose

Shapes are those that the exporter noted; where it noted none, a node stays as it is. Nothing but the arrangement of
elements between nodes changes.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.editing import dtype_of, producer, remove_if_unused, streamed
from edgeformer.export.graph.pass_report import PassReport

TO_THE_END = 2**31 - 1
"""Ends of a slice from here on mean the end of the axis; torch writes 2**63 − 1."""


def simplify_layout(model: ir.Model) -> PassReport:
    """Simplify until nothing changes; `changed` counts the nodes that are gone."""
    report = PassReport("simplify_layout")
    before = len(model.graph)
    # Each change may make the next one possible, and each leaves fewer or simpler nodes.
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
    """Simplify one node, or what it reads; False where there is nothing to do."""
    if node.outputs[0].is_graph_output():
        return False
    if node.domain == DOMAIN and node.op_type == "RMSNorm":
        return _norm_before_transpose(model, node)
    if node.domain == "" and node.op_type in ("Reshape", "Transpose", "Slice"):
        return {"Reshape": _reshape, "Transpose": _transpose, "Slice": _slice}[node.op_type](model, node)
    return False


def _reshape(model: ir.Model, node: ir.Node) -> bool:
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    before = producer(x, "Reshape")
    source = x if before is None else before.inputs[0]
    assert source is not None
    if source.shape is None or y.shape is None:
        return False
    if source.shape == y.shape:
        return _bypass(model, node, source)
    sizes = _sizes(source.shape, y.shape)
    written = constant_integers(node.inputs[1])
    if sizes is None or (before is None and written is not None and written.tolist() == sizes):
        return False
    emit = NodeBuilder(node.name or "")
    return _replace(model, node, emit, emit("Reshape", source, emit.constant(sizes)))


def _sizes(source: ir.Shape, target: ir.Shape) -> list[int] | None:
    """A constant that reshapes `source` to `target`; None where two dimensions of it would have to be found."""
    sizes = [
        size if isinstance(size, int) else 0 if index < len(source) and source[index] == size else -1
        for index, size in enumerate(target)
    ]
    # A dimension may be called by a name that is not unique to it: None is never equal to None here.
    unnamed = any(not isinstance(size, int) and size.value is None for size in (*source, *target))
    return None if unnamed or sizes.count(-1) > 1 else sizes


def _transpose(model: ir.Model, node: ir.Node) -> bool:
    before = producer(node.inputs[0], "Transpose")
    if before is None or streamed(before.inputs[0]) is not None:
        return False
    source = before.inputs[0]
    assert source is not None
    inner, outer = (list(each.attributes.get_ints("perm")) for each in (before, node))
    combined = [inner[axis] for axis in outer]
    if combined == sorted(combined):
        return _bypass(model, node, source)
    emit = NodeBuilder(node.name or "")
    return _replace(model, node, emit, emit("Transpose", source, perm=combined))


def _slice(model: ir.Model, node: ir.Node) -> bool:
    starts, ends = (constant_integers(value) for value in node.inputs[1:3])
    steps = constant_integers(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    if (
        starts is None
        or ends is None
        or steps is None
        or starts.any()
        or (ends < TO_THE_END).any()
        or (steps != 1).any()
    ):
        return False
    source = node.inputs[0]
    assert source is not None
    return _bypass(model, node, source)


def _norm_before_transpose(model: ir.Model, norm: ir.Node) -> bool:
    transpose = producer(norm.inputs[0], "Transpose")
    if transpose is None or len(transpose.outputs[0].uses()) != 1:
        return False
    source, perm = transpose.inputs[0], list(transpose.attributes.get_ints("perm"))
    if source is None or source.shape is None or perm[-1] != len(perm) - 1:
        return False
    emit = NodeBuilder(norm.name or "")
    epsilon = norm.attributes.get_float("epsilon")
    normed = emit("RMSNorm", source, *norm.inputs[1:], domain=DOMAIN, epsilon=epsilon)
    normed.dtype, normed.shape = dtype_of(norm.outputs[0]), source.shape
    return _replace(model, norm, emit, emit("Transpose", normed, perm=perm))


def _bypass(model: ir.Model, node: ir.Node, source: ir.Value) -> bool:
    if source.shape is None:
        source.shape = node.outputs[0].shape
    ir.convenience.replace_all_uses_with(node.outputs[0], source)
    _remove(model, node)
    return True


def _replace(model: ir.Model, node: ir.Node, emit: NodeBuilder, output: ir.Value) -> bool:
    output.type, output.shape = node.outputs[0].type, node.outputs[0].shape
    model.graph.insert_before(node, emit.nodes)
    ir.convenience.replace_all_uses_with(node.outputs[0], output)
    _remove(model, node)
    return True


def _remove(model: ir.Model, node: ir.Node) -> None:
    """Drop a node and, where nothing else reads it, the one before it."""
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    remove_if_unused(model, node, before)


def constant_integers(value: ir.Value | None) -> np.ndarray | None:
    """The integers behind a value that small nodes make of constants; None where it depends on inputs."""
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
    # What these nodes hold here is a handful of numbers in a row, whatever its shape.
    return np.concatenate([part.reshape(-1) for part in (known if node.op_type == "Concat" else known[:1])])
