"""Seed-OSS.

Llama with biases on queries, keys and values, and by choice elsewhere. Source:
transformers/models/seed_oss/modeling_seed_oss.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Seed-OSS config.json."""
    fields.ignore("pretraining_tp", "residual_dropout")
    return read_llama(
        fields,
        context_length,
        attention={
            "qkv_bias": fields.take("attention_bias"),
            "output_bias": fields.take("attention_out_bias", False),
        },
        feed_forward={"bias": fields.take("mlp_bias", False)},
    )


FAMILY = Family(
    summary="Seed-OSS: biases on queries, keys and values",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"attention_bias": True, "head_dim": 128, "num_key_value_heads": 8},
)
