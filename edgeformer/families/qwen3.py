"""Qwen3, dense models.

Qwen2 with norms of queries and keys instead of biases. Source: transformers/models/qwen3/modeling_qwen3.py.
"""

from edgeformer.config import DecoderConfig, QKNormConfig
from edgeformer.families import qwen2
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import QK_NORM_TENSORS, TENSORS, read_attention_bias, read_llama, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Qwen3 config.json."""
    qk_norm = QKNormConfig(norm=read_norm(fields), over="head")
    attention = {"qk_norm": qk_norm, **read_attention_bias(fields)}
    return qwen2.read_windows(fields, read_llama(fields, context_length, attention=attention))


FAMILY = Family(
    summary="Qwen3, dense: norms of queries and keys, windows by layer",
    read_config=read_config,
    tensors=TENSORS | QK_NORM_TENSORS,
    defaults={"head_dim": 128, **qwen2.FAMILY.defaults},
    reads_is_causal=True,
)
