"""Granite 3 and 4.1, dense models.

Llama with four multipliers. Source: transformers/models/granite/modeling_granite.py.
"""

from typing import Literal

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_granite(
    fields: Fields,
    context_length: int | None,
    *,
    scale: float,
    logit_scale: float,
    norm_placement: Literal["pre", "sandwich"] = "pre",
) -> DecoderConfig:
    """Read the fields that Granite and its variants share; scale: of scores."""
    return read_llama(
        fields,
        context_length,
        attention={"scale": scale, **read_attention_bias(fields)},
        feed_forward={"bias": fields.take("mlp_bias", False)},
        block={"residual_scale": fields.take("residual_multiplier", 1.0), "norm_placement": norm_placement},
        embedding_scale=fields.take("embedding_multiplier", 1.0),
        logit_scale=logit_scale,
    )


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Granite config.json."""
    scale, logit_scale = fields.take("attention_multiplier", 1.0), 1 / fields.take("logits_scaling", 1.0)
    return read_granite(fields, context_length, scale=scale, logit_scale=logit_scale)


FAMILY = Family(
    summary="Granite, dense: multipliers of embeddings, scores, branches and logits",
    read_config=read_config,
    tensors=TENSORS,
    reads_is_causal=True,
)
