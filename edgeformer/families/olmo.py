"""OLMo 1.

Llama with LayerNorm without weights, and clamped queries, keys and values. Source:
transformers/models/olmo/modeling_olmo.py.
"""

from edgeformer.config import DecoderConfig, NormConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an OLMo config.json."""
    return read_llama(
        fields,
        context_length,
        norm=NormConfig(kind="layer_norm", eps=1e-5, weight=False),
        attention={"qkv_clip": fields.take("clip_qkv", None), **read_attention_bias(fields)},
    )


FAMILY = Family(
    summary="OLMo 1: norms without weights, clamped queries, keys and values",
    read_config=read_config,
    tensors=TENSORS,
)
