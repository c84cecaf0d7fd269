"""Store weights the way that MatMul reads them.

MatMul(x, Transpose(W)) with a weight [out, in] becomes MatMul(x, W') with W' [in, out] in the file. A weight that
something else reads as it is (the embedding behind a tied head) stays: transposing it would make a second copy.
"""

import onnx_ir as ir

from edgeformer.export.graph.editing import add_initializer, remove_if_unused, remove_initializer, streamed
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.tensors import transpose


def transpose_weights(model: ir.Model) -> PassReport:
    """Fold the Transpose of every weight that only transposes read."""
    report = PassReport("transpose_weights")
    for node in list(model.graph):
        if node.op_type != "Transpose" or node.domain != "":
            continue
        weight, tensor = node.inputs[0], streamed(node.inputs[0])
        if weight is None or tensor is None or list(node.attributes.get_ints("perm")) != [1, 0]:
            continue
        if any(use.node.op_type != "Transpose" for use in weight.uses()):
            report.miss(node, f"{weight.name} is also read untransposed (tied)")
            continue
        uses = [use.node for use in weight.uses()]
        remove_initializer(model, weight)
        stored = add_initializer(model, transpose(tensor))
        for use in uses:
            ir.convenience.replace_all_uses_with(use.outputs[0], stored)
            remove_if_unused(model, use)
        report.fire(node)
    return report
