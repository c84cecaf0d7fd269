"""Jais 2.

Llama with LayerNorm, biases, and a feed-forward without gate and squared ReLU. Source:
transformers/models/jais2/modeling_jais2.py.
"""

from edgeformer.config import DecoderConfig, NormConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Jais 2 config.json."""
    return read_llama(
        fields,
        context_length,
        norm=NormConfig(kind="layer_norm", eps=fields.take("layer_norm_eps", 1e-5), bias=True),
        attention=read_attention_bias(fields),
        feed_forward={"gated": False, "bias": fields.take("mlp_bias")},
    )


FAMILY = Family(
    summary="Jais 2: LayerNorm, biases, squared ReLU",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"hidden_act": "relu2", "attention_bias": True, "mlp_bias": True},
)
