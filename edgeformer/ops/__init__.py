"""The custom ops of domain `edgeformer`, which define the maths of the models.

Each file holds one op: its eager implementation in plain torch (in the dtype of its inputs, float64 included, without
hidden upcasts), its fake shapes for `torch.export`, and its formula and source. The ONNX op of the same name in the
canonical graph has the same inputs and attributes (`export/graph/canonical.py`) and a function body in primitive ops
(`export/graph/function_bodies.py`).

Ops are functional: they mutate nothing; a cache is an input and an output.
"""

import torch

from edgeformer.ops.causal_conv import causal_conv
from edgeformer.ops.cross_attention import cross_attention
from edgeformer.ops.expert_router import expert_router
from edgeformer.ops.group_query_attention import group_query_attention
from edgeformer.ops.key_positions import key_positions
from edgeformer.ops.layer_norm import skip_layer_norm
from edgeformer.ops.linear_attention import linear_attention
from edgeformer.ops.mixture_of_experts import mixture_of_experts
from edgeformer.ops.rms_norm import rms_norm, skip_rms_norm
from edgeformer.ops.rotary_embedding import rotary_embedding
from edgeformer.ops.shared_attention import shared_attention
from edgeformer.ops.token_mask import token_mask
from edgeformer.ops.token_positions import token_positions

__all__ = [
    "NAMES",
    "causal_conv",
    "cross_attention",
    "expert_router",
    "group_query_attention",
    "key_positions",
    "linear_attention",
    "mixture_of_experts",
    "rms_norm",
    "rotary_embedding",
    "shared_attention",
    "skip_layer_norm",
    "skip_rms_norm",
    "token_mask",
    "token_positions",
]

NAMES = {
    "RMSNorm": "rms_norm",
    "SkipRMSNorm": "skip_rms_norm",
    "SkipLayerNorm": "skip_layer_norm",
    "RotaryEmbedding": "rotary_embedding",
    "GroupQueryAttention": "group_query_attention",
    "SharedAttention": "shared_attention",
    "CrossAttention": "cross_attention",
    "ExpertRouter": "expert_router",
    "MixtureOfExperts": "mixture_of_experts",
    "TokenPositions": "token_positions",
    "KeyPositions": "key_positions",
    "TokenMask": "token_mask",
    "CausalConv": "causal_conv",
    "LinearAttention": "linear_attention",
}
"""The names of the ops in graphs, and in `torch.ops.edgeformer`."""

# MKL's vector maths initializes itself in its first call. Where two threads make that call together, one of them may
# compute float64 with half of its digits: a table of sines was off by 6e-9 in 9 of 40 fresh processes (torch 2.13, MKL
# 2024.2, two cores), in none of 40 after a first call from one thread. A tensor this small is computed by one thread.
torch.zeros(8, dtype=torch.float64).sin()
