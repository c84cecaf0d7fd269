"""Arcee AFM.

Llama with a feed-forward without gate and squared ReLU. Source: transformers/models/arcee/modeling_arcee.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an Arcee config.json."""
    return read_llama(
        fields,
        context_length,
        attention=read_attention_bias(fields),
        feed_forward={"gated": False, "bias": fields.take("mlp_bias", False)},
    )


FAMILY = Family(
    summary="Arcee AFM: squared ReLU without a gate",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"hidden_act": "relu2", "rms_norm_eps": 1e-5},
    reads_is_causal=True,
)
