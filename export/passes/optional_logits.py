"""Compute what only the logits need for the last tokens alone, from where an optional input says.

    attention [B, S, H·D] → MatMul → + x → RMSNorm → … → MatMul → logits [B, S, V]

becomes

    attention → Slice(logits_start:), x → Slice(logits_start:) → MatMul → + → RMSNorm → … → MatMul → logits [B, L, V]

`logits_start` int64 [1] is an initializer: 0, so that the logits are those of all tokens. The runtime makes it an
input, too, in the graph that it opens (`optional_input`). Requires what `last_token` does.
"""

import numpy as np
import onnx_ir as ir

from edgeformer.contract.tensors import LOGITS_START
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.passes.last_token import cut_last_part


def optional_logits(model: ir.Model) -> PassReport:
    """Slice the inputs of the last part of a decoder to the tokens from the input `logits_start` on.

    The input is required until `make_optional`, which comes behind all passes: they would take an initializer for a
    constant, and join it with others of its value.
    """
    report = PassReport("optional_logits")
    outputs = {output.name: output for output in model.graph.outputs}
    logits = outputs.get("logits")
    shape = None if logits is None else logits.shape
    is_decoder = any(name and name.startswith("present") for name in outputs)
    if shape is None or shape[1] == 1 or not is_decoder:
        return report  # an encoder, or a graph of the last token alone
    start = ir.Value(name=LOGITS_START, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    report = cut_last_part(model, report, start)
    if report.changed:
        model.graph.inputs.append(start)
    return report


def make_optional(model: ir.Model) -> None:
    """Make the input `logits_start`, if there is one, an initializer, 0: the logits are those of all tokens."""
    for value in list(model.graph.inputs):
        if value.name == LOGITS_START:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(np.zeros(1, np.int64), name=LOGITS_START)
            model.graph.register_initializer(value)
