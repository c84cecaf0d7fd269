"""Simplify what stands around layers with a state of fixed size, so that kernels run all of a layer.

    x → Slice, Slice, Slice                            becomes    x → Split       where they are all of the last axis
    x → Reshape(Concat(Shape …))                       becomes    x → Reshape([0, 0, 16, 128])
    x → Mul, Softplus, Div, Greater, CastLike, Where   becomes    x → Softplus

The last chain is torch's softplus with beta = 1, which is x above a threshold: so is Softplus in float32.
"""

from collections.abc import Callable

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import dim, dtype_of
from edgeformer.export.graph.provenance import origin_of
from edgeformer.export.passes.simplify_layout import constant_integers

WITHOUT_REST = 17.0
"""The least threshold of a softplus: log(1 + e^-x) is less than half a unit in the last place of x from here on."""


def simplify_recurrent_layout(model: ir.Model) -> None:
    """Simplify the nodes of a graph."""
    rewrites: dict[str, Callable[[ir.Node], None]] = {
        "Slice": _join_slices, "Reshape": _fix_shape, "Where": _plain_softplus,
    }  # fmt: skip
    for node in list(model.graph):
        if node.graph is not None and node.domain == "" and node.op_type in rewrites:
            rewrites[node.op_type](node)


def _join_slices(first: ir.Node) -> None:
    """Replace all slices of a value by a Split, where they are the last axis in parts. first: of them, in the graph."""
    x = first.inputs[0]
    assert x is not None
    found = {}
    for node in (use.node for use in x.uses()):
        part = _part_of_last_axis(node)
        if part is not None and node.inputs[0] is x:
            found[part] = node
    parts = sorted(found)
    ends = [0, *(end for _, end in parts)]
    if len(parts) < 2 or [begin for begin, _ in parts] != ends[:-1] or ends[-1] != dim(x, -1):
        return
    emit = NodeBuilder(f"{first.name}/split", origin_of(first))
    sizes = emit.constant([end - begin for begin, end in parts])
    made = emit.many("Split", x, sizes, outputs=len(parts), axis=-1)
    graph = first.graph
    assert graph is not None
    graph.insert_before(first, emit.nodes)
    for part, value in zip(parts, made, strict=True):
        node = found[part]
        value.type, value.shape = node.outputs[0].type, node.outputs[0].shape
        ir.convenience.replace_nodes_and_values(graph, node, [node], [], node.outputs, [value])


def _part_of_last_axis(node: ir.Node) -> tuple[int, int] | None:
    """Return begin and end of a Slice of the last axis alone; None for anything else."""
    x = node.inputs[0]
    if (node.domain, node.op_type) != ("", "Slice") or x is None or x.shape is None or len(node.inputs) < 4:
        return None
    given = [constant_integers(value) for value in node.inputs[1:]]
    if any(each is None or each.size != 1 for each in given):
        return None
    begin, end, axis, *step = (int(each.item()) for each in given if each is not None)
    size = x.shape[-1]
    if axis not in (-1, len(x.shape) - 1) or step not in ([], [1]) or not isinstance(size, int):
        return None
    return (begin, min(end, size)) if 0 <= begin < end else None


def _fix_shape(node: ir.Node) -> None:
    """Give a Reshape a constant shape, where it keeps the first sizes and the others are known."""
    (x, shape), (y,) = node.inputs[:2], node.outputs
    if constant_integers(shape) is not None or x is None or x.shape is None or y.shape is None:
        return
    kept = 0
    for old, new in zip(x.shape, y.shape, strict=False):
        if old != new or (isinstance(old, ir.SymbolicDim) and old.value is None):
            break
        kept += 1
    rest = [size if isinstance(size, int) else -1 for size in y.shape[kept:]]
    if rest.count(-1) > 1 or 0 in rest:
        return
    emit = NodeBuilder.replacing(node, "emitted by lower/ort")
    made = emit("Reshape", x, emit.constant([0] * kept + rest))
    replace_node(node, emit, [made], main=made.producer())


def _plain_softplus(where: ir.Node) -> None:
    """Replace the chain that ends in a Where by its Softplus."""
    above, x, below = where.inputs
    greater, divide = (None if value is None else value.producer() for value in (above, below))
    if greater is None or divide is None or (greater.op_type, divide.op_type) != ("Greater", "Div"):
        return
    softplus = None if divide.inputs[0] is None else divide.inputs[0].producer()
    if softplus is None or softplus.op_type != "Softplus" or _number(divide.inputs[1]) != 1.0:
        return
    scaled = softplus.inputs[0]
    times = None if scaled is None else scaled.producer()
    if times is None or times.op_type != "Mul" or times.inputs[0] is not x or _number(times.inputs[1]) != 1.0:
        return
    threshold = _number(greater.inputs[1])
    if greater.inputs[0] is not scaled or threshold is None or threshold < WITHOUT_REST:
        return
    if dtype_of(where.outputs[0]) != ir.DataType.FLOAT:
        return
    emit = NodeBuilder.replacing(where, "emitted by lower/ort")
    replace_node(where, emit, [emit("Softplus", x)])


def _number(value: ir.Value | None) -> float | None:
    """Return a constant number, which may be cast."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in ("Cast", "CastLike"):
        value = node.inputs[0]
        node = None if value is None else value.producer()
    found = constant_integers(value)
    return float(found.item()) if found is not None and found.size == 1 else None
