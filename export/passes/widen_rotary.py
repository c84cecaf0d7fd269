"""Rotate whole heads where a module slices off the rotated elements and concatenates the rest afterwards.

    x ─→ Slice [0 : R] ─→ (Transpose) ─→ Reshape ─→ RotaryEmbedding ─→ Reshape ─→ (Transpose) ─┐
    └──→ Slice [R : D] ────────────────────────────────────────────────────────────────────────┴→ Concat

becomes x → (Transpose) → Reshape → RotaryEmbedding → Reshape → (Transpose): the op passes through the elements beyond
the width of its tables. Requires that x is [B, H, S, D] or [B, S, H, D] and that both parts together are all of it, in
order. A Split in place of the two slices is matched as well.
"""

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import dim, dtype_of, producer, remove_if_unused, same_type
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.passes.simplify_layout import constant_integers

HEADS_FIRST = [0, 2, 1, 3]


def widen_rotary(model: ir.Model) -> PassReport:
    """Widen every rotation of a leading slice that is concatenated with the rest."""
    report = PassReport("widen_rotary")
    for concat in [node for node in model.graph if node.op_type == "Concat" and len(node.inputs) == 2]:
        found = _rotated(concat.inputs[0])
        if found is None or concat.attributes.get_int("axis") not in (-1, 3):
            continue
        rotary, transposed, rotated = found
        x = _whole(rotated, concat.inputs[1])
        if x is None:
            report.miss(rotary, "it turns a part of something that is not put back whole")
            continue
        emit = NodeBuilder.replacing(rotary, "widened by widen_rotary")
        output = _widened(emit, rotary, transposed, x)
        same_type(output, concat.outputs[0])
        model.graph.insert_before(concat, emit.nodes)
        ir.convenience.replace_all_uses_with(concat.outputs[0], output)
        remove_if_unused(model, concat)
        report.fire(rotary)
    common_passes.RemoveUnusedNodesPass()(model)
    return report


def _widened(emit: NodeBuilder, rotary: ir.Node, transposed: bool, x: ir.Value) -> ir.Value:
    """x with its leading elements rotated, in its own layout."""
    assert x.shape is not None
    heads, width = dim(x, 1 if transposed else 2), dim(x, 3)
    rows = [x.shape[0], x.shape[2 if transposed else 1]]

    def noted(value: ir.Value, *sizes: int) -> ir.Value:
        value.shape, value.dtype = ir.Shape([*rows, *sizes]), dtype_of(x)
        return value

    laid_out = noted(emit("Transpose", x, perm=HEADS_FIRST), heads, width) if transposed else x
    flat = noted(emit("Reshape", laid_out, emit.constant([0, 0, heads * width])), heads * width)
    rotated = emit(
        "RotaryEmbedding", flat, *rotary.inputs[1:], domain=DOMAIN, num_heads=heads,
        interleaved=rotary.attributes.get_int("interleaved"),
    )  # fmt: skip
    split = noted(emit("Reshape", noted(rotated, heads * width), emit.constant([0, 0, heads, width])), heads, width)
    return emit("Transpose", split, perm=HEADS_FIRST) if transposed else split


def _rotated(value: ir.Value | None) -> tuple[ir.Node, bool, ir.Value] | None:
    """Match (Transpose)(Reshape(RotaryEmbedding(Reshape((Transpose)(x))))); return the op, if transposed, and x."""
    behind = _transpose(value)
    split = producer(behind.inputs[0] if behind else value, "Reshape")
    rotary = producer(split.inputs[0], "RotaryEmbedding", DOMAIN) if split else None
    flat = producer(canonical_inputs(rotary).x, "Reshape") if rotary else None
    if split is None or rotary is None or flat is None:
        return None
    before = _transpose(flat.inputs[0])
    x = before.inputs[0] if before else flat.inputs[0]
    if (behind is None) != (before is None) or x is None or x.shape is None or x.shape != value.shape:  # type: ignore[union-attr]
        return None
    return rotary, before is not None, x


def _transpose(value: ir.Value | None) -> ir.Node | None:
    node = producer(value, "Transpose")
    return node if node is not None and list(node.attributes.get_ints("perm")) == HEADS_FIRST else None


def _whole(first: ir.Value, second: ir.Value | None) -> ir.Value | None:
    """The value that two values are the first and second part of, along axis 3; None where they are not all of it."""
    parts = [_part(first), _part(second)]
    if parts[0] is None or parts[1] is None or parts[0][0] is not parts[1][0]:
        return None
    whole, start, middle = parts[0]
    _, again, end = parts[1]
    whole_width = whole.shape[3] if whole.shape is not None and whole.shape.rank() == 4 else None
    return whole if (start, middle, end) == (0, again, whole_width) else None


def _part(value: ir.Value | None) -> tuple[ir.Value, int, int] | None:
    """The value that another is a part of along axis 3, with the start and end of that part."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.inputs[0] is None:
        return None
    whole = node.inputs[0]
    if whole.shape is None or whole.shape.rank() != 4 or not isinstance(whole.shape[3], int):
        return None
    width = whole.shape[3]
    if node.op_type == "Split" and node.attributes.get_int("axis", 0) in (-1, 3):
        sizes = [dim(output, 3) for output in node.outputs]
        index = list(node.outputs).index(value)  # type: ignore[arg-type]
        return whole, sum(sizes[:index]), sum(sizes[: index + 1])
    if node.op_type != "Slice":
        return None
    starts, ends, axes, steps = (constant_integers(each) for each in [*node.inputs[1:], None, None][:4])
    if starts is None or ends is None or axes is None or axes.tolist() not in ([3], [-1]):
        return None
    if steps is not None and steps.tolist() != [1]:
        return None
    start, end = (min(int(edge[0]) + (width if edge[0] < 0 else 0), width) for edge in (starts, ends))
    return whole, start, end
