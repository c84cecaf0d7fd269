"""Op set `portable`: primitives that ONNX has had since opset 18 or before, for runtimes that know little else.

Every canonical op is its body, written out in place or, if that is wished, left as a function of the model, which a
viewer shows as one node and a vendor may put a kernel in the place of.
"""

import onnx_ir as ir

from edgeformer.export.lower.portable.gelu import lower_gelu
from edgeformer.export.lower.tied_head import lower_tied_head
from edgeformer.export.passes import PassReport, transpose_weights

RULES = (lower_gelu, lower_tied_head)


def rewrite(model: ir.Model) -> list[PassReport]:
    """The passes that make smaller or faster graphs of primitives, too."""
    return [transpose_weights(model)]


__all__ = ["RULES", "rewrite"]
