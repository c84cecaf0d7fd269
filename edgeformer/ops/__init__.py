"""The custom ops of domain `edgeformer`, which define the maths of the models.

Each file holds one op: its eager implementation in plain torch (in the dtype of its inputs, float64 included, without
hidden upcasts), its fake shapes for `torch.export`, and its formula and source. The ONNX op of the same name in the
canonical graph has the same inputs and attributes (`export/graph/canonical.py`) and a function body in primitive ops
(`export/graph/function_bodies.py`).

Ops are functional: they mutate nothing; a cache is an input and an output.
"""

from edgeformer.ops.cross_attention import cross_attention
from edgeformer.ops.group_query_attention import group_query_attention
from edgeformer.ops.key_positions import key_positions
from edgeformer.ops.layer_norm import skip_layer_norm
from edgeformer.ops.rms_norm import rms_norm, skip_rms_norm
from edgeformer.ops.rotary_embedding import rotary_embedding
from edgeformer.ops.token_positions import token_positions

__all__ = [
    "cross_attention",
    "group_query_attention",
    "key_positions",
    "rms_norm",
    "rotary_embedding",
    "skip_layer_norm",
    "skip_rms_norm",
    "token_positions",
]
