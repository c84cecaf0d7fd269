"""Replace rare ops that torch's exporter emits by common ones.

    x → SplitToSequence → SequenceAt(0), SequenceAt(1) …     becomes     x → Split → …
    x, y → CastLike                                          becomes     x → Cast to y's type, or x where it has it

Few runtimes have sequences of tensors, onnxruntime has no kernel for CastLike, and no other pass matches either. A
split requires constant sizes that add up to x, and that only SequenceAt with a constant index reads the sequence. A
cast requires that the type is known.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dtype_of, remove_if_unused
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.passes.simplify_layout import constant_integers

CREATOR = "rewritten by replace_rare_ops"


def replace_rare_ops(model: ir.Model) -> PassReport:
    """Replace every SplitToSequence and CastLike that meets the requirements."""
    report = PassReport("replace_rare_ops")
    for node in list(model.graph):
        if node.domain == "" and node.op_type in ("SplitToSequence", "CastLike"):
            missing = (_split if node.op_type == "SplitToSequence" else _cast)(model, node)
            if missing is None:
                report.fire(node)
            else:
                report.miss(node, missing)
    return report


def _split(model: ir.Model, node: ir.Node) -> str | None:
    """Replace a SplitToSequence by a Split; return the requirement that it does not meet."""
    sizes, x = _sizes(node), node.inputs[0]
    reads = [use.node for use in node.outputs[0].uses()]
    indices = [constant_integers(each.inputs[1]) if each.op_type == "SequenceAt" else None for each in reads]
    if sizes is None or x is None or x.shape is None:
        return "its sizes are no constants, or not those of what is split"
    if any(index is None for index in indices):
        return "something but a constant place of the sequence is read"
    axis = node.attributes.get_int("axis", 0)
    emit = NodeBuilder.replacing(node, CREATOR)
    parts = emit.many("Split", x, emit.constant(sizes), outputs=len(sizes), axis=axis)
    for part, size in zip(parts, sizes, strict=True):
        shape = list(x.shape)
        shape[axis] = size
        part.shape, part.dtype = ir.Shape(shape), dtype_of(x)
    model.graph.insert_before(node, emit.nodes)
    for read, index in zip(reads, indices, strict=True):
        assert index is not None
        ir.convenience.replace_all_uses_with(read.outputs[0], parts[int(index.reshape(-1)[0])])
        remove_if_unused(model, read)
    remove_if_unused(model, node)
    return None


def _cast(model: ir.Model, node: ir.Node) -> str | None:
    """Replace a CastLike by a Cast; return the requirement that it does not meet."""
    x, like = node.inputs
    output = node.outputs[0]
    dtype = output.dtype or (None if like is None else like.dtype)
    if x is None or dtype is None or output.is_graph_output():
        return "its type is not known"
    if x.dtype == dtype:
        ir.convenience.replace_all_uses_with(output, x)
    else:
        emit = NodeBuilder.replacing(node, CREATOR)
        cast = emit("Cast", x, to=dtype)
        cast.shape, cast.dtype = output.shape, dtype
        model.graph.insert_before(node, emit.nodes)
        ir.convenience.replace_all_uses_with(output, cast)
    remove_if_unused(model, node)
    return None


def _sizes(node: ir.Node) -> list[int] | None:
    """Sizes of the sequence's tensors along the axis; None where they are not known."""
    x = node.inputs[0]
    axis = node.attributes.get_int("axis", 0)
    width = None if x is None or x.shape is None else x.shape[axis]
    split = constant_integers(node.inputs[1]) if len(node.inputs) > 1 else None
    if split is None or not isinstance(width, int):
        return None
    if split.ndim:
        return [int(size) for size in split] if split.sum() == width else None
    size = int(split)
    return [min(size, width - start) for start in range(0, width, size)]
