"""Op set `portable`: primitives of opset 18, for runtimes that have few other ops.

Every canonical op is decomposed into its body or, with `functions`, kept as a function of the model, which a viewer
shows as one node and a vendor may replace by a kernel.
"""

import onnx_ir as ir

from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.dense_experts import lower_dense_experts
from edgeformer.export.lower.portable.gelu import lower_gelu
from edgeformer.export.lower.portable.scans import refuse_scans
from edgeformer.export.lower.soft_cap import lower_soft_cap
from edgeformer.export.lower.tied_head import lower_tied_head
from edgeformer.export.passes import transpose_weights

RULES = (refuse_scans, lower_gelu, lower_dense_experts, lower_tied_head, lower_soft_cap)


def rewrite(model: ir.Model) -> list[PassReport]:
    """Run the passes that make graphs of primitives smaller or faster."""
    return [transpose_weights(model)]


__all__ = ["RULES", "rewrite"]
