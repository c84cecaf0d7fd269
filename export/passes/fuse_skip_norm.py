"""Fuse a residual addition with the norm that follows.

    x, skip → Add → RMSNorm                becomes     SkipRMSNorm(x, skip) → normed, sum
    x, skip → Add → LayerNormalization     becomes     SkipLayerNorm(x, skip) → normed, sum

Requires that the norm has a weight and that the two summands have the same shape, which excludes a bias. Other readers
of the sum read the op's second output. A final norm of the tokens from `logits_start` on, whose sum is a graph output
of all tokens, stays as it is.
"""

import onnx_ir as ir

from edgeformer.contract.ops import CANONICAL_RMS_NORM, DOMAIN, LAYER_NORM
from edgeformer.contract.tensors import LOGITS_START
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import producer, remove_if_unused, same_type
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import NodeOrigin

FUSED = {CANONICAL_RMS_NORM.key: "SkipRMSNorm", LAYER_NORM.key: "SkipLayerNorm"}
"""The fused op for each norm."""

LAYER_NORM_EPSILON = 1e-5
"""Default of LayerNormalization's attribute epsilon in ONNX."""


def fuse_skip_norm(model: ir.Model) -> PassReport:
    """Fuse every norm whose input is a residual sum."""
    report = PassReport("fuse_skip_norm")
    for norm in [node for node in model.graph if (node.domain, node.op_type) in FUSED]:
        add = producer(norm.inputs[0], "Add")
        if add is None:
            if _reads_last_tokens(norm):
                report.miss(norm, "it reads the last tokens of a sum that the graph returns")
            continue
        parameters = norm.inputs[1:]
        # The weight of a LayerNorm without one is a 1 that is expanded to the shape of the sum, which the fusion
        # removes.
        if not parameters or parameters[0] is None or producer(parameters[0], "Expand") is not None:
            report.miss(norm, "it has no weight")
            continue
        x, skip = add.inputs
        if x is None or skip is None or x.shape is None or x.shape != skip.shape:
            report.miss(norm, "the summands before it differ in shape")
            continue
        fused = FUSED[norm.domain, norm.op_type]
        emit = NodeBuilder(norm.name or "", NodeOrigin(f"{DOMAIN}::{fused}", "fused by fuse_skip_norm"))
        epsilon = norm.attributes.get_float("epsilon", LAYER_NORM_EPSILON)
        normed, total = emit.many(fused, x, skip, *parameters, outputs=2, domain=DOMAIN, epsilon=epsilon)
        emit.nodes[0].name = norm.name
        same_type(total, add.outputs[0])
        same_type(normed, norm.outputs[0])
        # Other nodes may read the sum before the norm in graph order, so the fused node takes the place of the
        # addition.
        model.graph.insert_before(add, emit.nodes)
        for old, new in ((norm.outputs[0], normed), (add.outputs[0], total)):
            if old.is_graph_output():
                new.name = old.name
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        remove_if_unused(model, norm, add)
        report.fire(norm)
    # The nodes of a computed weight (an offset added to it) may stand behind the sum, whose place the norm now has.
    model.graph.sort()
    return report


def _reads_last_tokens(norm: ir.Node) -> bool:
    """Whether a norm reads a residual sum from `logits_start` on (`optional_logits`)."""
    cut = producer(norm.inputs[0], "Slice")
    if cut is None or cut.inputs[1] is None or cut.inputs[1].name != LOGITS_START:
        return False
    return producer(cut.inputs[0], "Add") is not None
