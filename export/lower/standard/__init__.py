"""Op set `standard`: ops of ONNX itself, opset 23 (24 for a static cache), and no vendor's domain.

| canonical           | emitted                                            | decomposed              |
|---------------------|----------------------------------------------------|-------------------------|
| RMSNorm             | RMSNormalization                                   |                         |
| RotaryEmbedding     | RotaryEmbedding                                    |                         |
| GroupQueryAttention | Attention, with its own past and present, or over  | sinks, relation vectors |
|                     | a cache that TensorScatter writes to               |                         |
| SharedAttention     | Attention                                          | sinks                   |
| CrossAttention      | Attention                                          |                         |
| tied head           | Gemm over the embedding, transposed                |                         |
"""

import onnx_ir as ir

from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.standard.attention import lower_attention
from edgeformer.export.lower.standard.cross_attention import lower_cross_attention
from edgeformer.export.lower.standard.norms import lower_norms
from edgeformer.export.lower.standard.rotary import lower_rotary
from edgeformer.export.lower.tied_head import lower_tied_head
from edgeformer.export.passes import transpose_weights

RULES = (lower_attention, lower_cross_attention, lower_rotary, lower_norms, lower_tied_head)


def rewrite(model: ir.Model) -> list[PassReport]:
    """Run the passes that prepare what these ops read."""
    return [transpose_weights(model)]


__all__ = ["RULES", "rewrite"]
