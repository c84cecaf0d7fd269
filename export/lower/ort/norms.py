"""Lower norms, with and without a residual sum inside, to ONNX Runtime's own ops. It requires nothing."""

import onnx_ir as ir

from edgeformer.contract.ops import RMS_NORM, SKIP_LAYER_NORM, SKIP_RMS_NORM
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions


def lower_norms(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every norm."""
    report = PassReport("norms")
    for node in canonical_nodes(model, "RMSNorm", "SkipRMSNorm", "SkipLayerNorm"):
        report.fire(node)
        _lower_norm(node)
    return report


def _lower_norm(node: ir.Node) -> None:
    emit, inputs = NodeBuilder.replacing(node, "emitted by lower/ort"), canonical_inputs(node)
    epsilon = node.attributes.get_float("epsilon")
    if node.op_type == "RMSNorm":
        x, weight = inputs["x"], inputs.weight
        if weight is None:
            weight = emit.constant([1.0] * dim(x, -1), dtype_of(x))
        # ONNX Runtime has this op in the default domain.
        replace_node(node, emit, [emit(RMS_NORM.name, x, weight, axis=-1, epsilon=epsilon)])
        return
    op = SKIP_LAYER_NORM if node.op_type == "SkipLayerNorm" else SKIP_RMS_NORM
    outputs = emit.many(op.name, *node.inputs, outputs=len(op.outputs), domain=op.domain, epsilon=epsilon)
    replace_node(node, emit, [outputs[0], outputs[-1]])
    # Outputs 1 and 2 are statistics for training; 3 is the sum, which nothing reads behind a post-norm.
    for output in outputs[1:]:
        if not output.uses() and not output.is_graph_output():
            output.name = ""
