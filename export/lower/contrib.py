"""Names of ONNX Runtime's contrib ops: their domain, and the inputs of its GroupQueryAttention."""

from collections.abc import Sequence

import onnx
import onnx_ir as ir

CONTRIB = "com.microsoft"

ATTENTION_INPUTS = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale",
)  # fmt: skip
"""Inputs of com.microsoft.GroupQueryAttention, in order (ContribOperators.md of onnxruntime 1.31)."""

INT8_CACHE = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
"""Attributes of com.microsoft.GroupQueryAttention with an int8 cache."""

FP8_CACHE = INT8_CACHE | {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
"""Attributes with a float8 cache, which differs from an int8 cache of the same scales in its type alone."""


def attention_input(node: onnx.NodeProto, name: str) -> str:
    """Return the name of the value that a GroupQueryAttention of a written graph reads as `name`; "" where absent."""
    return dict(zip(ATTENTION_INPUTS, node.input, strict=False)).get(name, "")


def attention_inputs(**values: ir.Value | None) -> Sequence[ir.Value | None]:
    """Return the inputs of a GroupQueryAttention in order, up to the last one that is named here."""
    last = max(ATTENTION_INPUTS.index(name) for name in values)
    return [values.get(name) for name in ATTENTION_INPUTS[: last + 1]]
