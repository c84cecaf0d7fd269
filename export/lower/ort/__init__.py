"""Op set `ort`: the contrib ops of ONNX Runtime (domain com.microsoft).

| canonical           | emitted                                     | where there is no kernel |
|---------------------|---------------------------------------------|--------------------------|
| RMSNorm             | SimplifiedLayerNormalization                |                          |
| SkipRMSNorm         | SkipSimplifiedLayerNormalization            |                          |
| SkipLayerNorm       | SkipLayerNormalization                      |                          |
| GroupQueryAttention | GroupQueryAttention, RoPE and packed QKV in | its body                 |
| CrossAttention      | MultiHeadAttention                          | its body                 |
| RotaryEmbedding     | its body (only what could not be folded)    |                          |
| QuantizedMatMul     | MatMulNBits, or MatMulIntegerToFloat        |                          |
| QuantizedGather     | GatherBlockQuantized, or primitives         |                          |
| tied head           | FusedMatMul over the embedding, transposed  |                          |

A graph takes its caches in any form: the kernel grows them or writes into a buffer, and the body does the same.
"""

import onnx_ir as ir

from edgeformer.export.lower.ort.attention import lower_attention
from edgeformer.export.lower.ort.cross_attention import lower_cross_attention
from edgeformer.export.lower.ort.fuse_gemms import fuse_gemms
from edgeformer.export.lower.ort.names import CONTRIB
from edgeformer.export.lower.ort.norms import lower_norms
from edgeformer.export.lower.ort.quantized import lower_quantized
from edgeformer.export.lower.ort.tied_head import lower_tied_head
from edgeformer.export.passes import PassReport, fold_rotary, fuse_skip_norm, pack_qkv, transpose_weights

RULES = (
    lower_attention,
    lower_cross_attention,
    lower_norms,
    fuse_gemms,
    lower_quantized,
    lower_tied_head,
)


def rewrite(model: ir.Model) -> list[PassReport]:
    """The passes that make what these kernels want to read."""
    return [
        transpose_weights(model),
        fold_rotary(model, accepts=lambda head_dim, rotary_dim: head_dim % 16 == 0 and rotary_dim % 16 == 0),
        pack_qkv(model),
        fuse_skip_norm(model),
    ]


__all__ = ["CONTRIB", "RULES", "rewrite"]
