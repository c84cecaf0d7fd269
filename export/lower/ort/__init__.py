"""Op set `ort`: the contrib ops of ONNX Runtime (domain com.microsoft).

| canonical           | emitted                                       | where there is no kernel |
|---------------------|-----------------------------------------------|--------------------------|
| RMSNorm             | SimplifiedLayerNormalization                  |                          |
| SkipRMSNorm         | SkipSimplifiedLayerNormalization              |                          |
| SkipLayerNorm       | SkipLayerNormalization                        |                          |
| GroupQueryAttention | GroupQueryAttention, with RoPE and packed QKV | its function body        |
| SharedAttention     | GroupQueryAttention, without new keys         | its function body        |
| CrossAttention      | MultiHeadAttention                            | its function body        |
| MixtureOfExperts    | MoE, or QMoE over integers                    | its function body        |
| LinearAttention     | LinearAttention, without padding              | its function body        |
| CausalConv          | its function body, which is as fast           |                          |
| both, beside        | functions of these (recurrent_functions)      |                          |
| quantized products  |                                               |                          |
| RotaryEmbedding     | RotaryEmbedding, where it was not folded      | its function body        |
| QuantizedMatMul     | MatMulNBits in a function (kernel_functions), |                          |
|                     | or MatMulIntegerToFloat (per_token_functions) |                          |
| QuantizedGather     | GatherBlockQuantized, or primitives           |                          |
| tied head           | FusedMatMul over the embedding, transposed    |                          |
| Tanh of a soft-cap  | a polynomial, for WebGPU                      | Tanh                     |
| MatMul by a weight  | MatMul in a function (float_functions)        |                          |

A graph takes its caches in any form: the kernel concatenates to them or writes into a buffer, and so does the body.
"""

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.ort.attention.attention import lower_attention
from edgeformer.export.lower.ort.attention.cross_attention import lower_cross_attention
from edgeformer.export.lower.ort.attention.linear_attention import lower_linear_attention
from edgeformer.export.lower.ort.attention.shared_attention import lower_shared_attention
from edgeformer.export.lower.ort.experts import lower_experts
from edgeformer.export.lower.ort.fuse_gemms import fuse_gemms
from edgeformer.export.lower.ort.kernels.float_functions import call_float_kernels
from edgeformer.export.lower.ort.kernels.kernel_functions import call_kernels
from edgeformer.export.lower.ort.kernels.per_token_functions import call_per_token_kernels
from edgeformer.export.lower.ort.kernels.recurrent_functions import call_recurrent_kernels
from edgeformer.export.lower.ort.low_rank import add_low_rank
from edgeformer.export.lower.ort.norms import lower_norms
from edgeformer.export.lower.ort.quantized import lower_quantized
from edgeformer.export.lower.ort.rotary import lower_rotary
from edgeformer.export.lower.soft_cap import lower_soft_cap
from edgeformer.export.lower.softplus import lower_softplus
from edgeformer.export.lower.tied_head import lower_tied_head
from edgeformer.export.passes import fold_rotary, fuse_skip_norm, pack_qkv, transpose_weights

RULES = (
    lower_attention,
    lower_shared_attention,
    lower_cross_attention,
    call_recurrent_kernels,
    lower_linear_attention,
    lower_rotary,
    lower_norms,
    lower_experts,
    fuse_gemms,
    lower_quantized,
    add_low_rank,
    call_kernels,
    call_per_token_kernels,
    lower_tied_head,
    lower_soft_cap,
    lower_softplus,
    call_float_kernels,
)


def rotates(head_dim: int, rotary_dim: int) -> bool:
    """Return whether the attention kernel rotates so many elements of heads by itself."""
    return head_dim % 16 == 0 and rotary_dim % 16 == 0


def rewrite(model: ir.Model) -> list[PassReport]:
    """Run the passes that prepare what these kernels read."""
    return [
        transpose_weights(model),
        fold_rotary(model, rotates),
        pack_qkv(model, rotates),
        fuse_skip_norm(model),
    ]


__all__ = ["CONTRIB", "RULES", "rewrite"]
