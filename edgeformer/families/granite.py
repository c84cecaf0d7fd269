"""Granite 3 and 4.1, dense models.

Llama with four multipliers. Source: transformers/models/granite/modeling_granite.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Granite config.json."""
    return read_llama(
        fields,
        context_length,
        attention={"scale": fields.take("attention_multiplier", 1.0), **read_attention_bias(fields)},
        feed_forward={"bias": fields.take("mlp_bias", False)},
        block={"residual_scale": fields.take("residual_multiplier", 1.0)},
        embedding_scale=fields.take("embedding_multiplier", 1.0),
        logit_scale=1 / fields.take("logits_scaling", 1.0),
    )


FAMILY = Family(
    summary="Granite, dense: multipliers of embeddings, scores, branches and logits",
    read_config=read_config,
    tensors=TENSORS,
)
