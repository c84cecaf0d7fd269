"""Helium 1.

Llama with interleaved rotary embeddings. Source: transformers/models/helium/modeling_helium.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Helium config.json."""
    return read_llama(
        fields,
        context_length,
        interleaved=True,
        attention={"qkv_bias": fields.take("attention_bias", False)},
        feed_forward={"bias": fields.take("mlp_bias", False)},
    )


FAMILY = Family(
    summary="Helium 1: interleaved rotary embeddings",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"num_key_value_heads": 20, "head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 100000.0},
)
