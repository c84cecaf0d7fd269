"""Compute logits of the last token alone.

    x [B, S, E] → MatMul(W) → … → logits [B, S, V]      becomes      x → Slice(−1:) → MatMul(W) → … → logits [B, 1, V]

Requires that a matrix product with a weight makes the logits, and that what follows it works element by element.
"""

import onnx_ir as ir

from edgeformer.export.emit import Emitter
from edgeformer.export.graph import dtype_of, streamed
from edgeformer.export.passes._report import PassReport

ELEMENTWISE = {"Add", "Mul", "Div", "Tanh", "Cast"}


def last_token_head(model: ir.Model) -> PassReport:
    """Cut the input of the head."""
    report = PassReport("last_token_head")
    logits = next(output for output in model.graph.outputs if output.name == "logits")
    head = logits.producer()
    while head is not None and head.op_type in ELEMENTWISE:
        head = head.inputs[0].producer()  # type: ignore[union-attr]
    if head is None or head.op_type != "MatMul" or not _is_weight(head.inputs[1]):
        report.miss(logits.producer() or head, "no product with a weight makes the logits")  # type: ignore[arg-type]
        return report
    emit = Emitter(head.name or "")
    last = emit("Slice", head.inputs[0], emit.constant([-1]), emit.constant([2**31 - 1]), emit.constant([1]))
    assert head.graph is not None and head.inputs[0] is not None and head.inputs[0].shape is not None
    last.dtype = dtype_of(head.inputs[0])
    last.shape = ir.Shape([head.inputs[0].shape[0], 1, *list(head.inputs[0].shape)[2:]])
    head.graph.insert_before(head, emit.nodes)
    head.replace_input_with(0, last)
    assert logits.shape is not None
    logits.shape = ir.Shape([logits.shape[0], 1, logits.shape[2]])
    report.fire(head)
    return report


def _is_weight(value: ir.Value | None) -> bool:
    maker = None if value is None else value.producer()
    return streamed(value if maker is None else maker.inputs[0]) is not None
