"""Gemma 1 and CodeGemma.

Llama with norms that store weight − 1, embeddings times √hidden_size, and GELU. Source:
transformers/models/gemma/modeling_gemma.py, which rounds √hidden_size to the dtype that it runs in (55.5 for √3072 in
bfloat16). Here it is exact, as it is there in float32.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.config import DecoderConfig
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import NO_CHANGES, TENSORS, read_attention_bias, read_llama, read_norm


def read_gemma(
    fields: Fields,
    context_length: int | None,
    attention: Mapping[str, Any],
    feed_forward: Mapping[str, Any],
    block: Mapping[str, Any] = NO_CHANGES,
    logit_softcap: float | None = None,
    both_ways: bool = False,
) -> DecoderConfig:
    """Read the fields that all Gemmas share; attention, feed_forward and block: as in `read_llama`.

    both_ways: whether the caller sees to it that tokens see those behind them, where config.json says so.
    """
    fields.choice("use_bidirectional_attention", {False: False} | ({True: True} if both_ways else {}), False)
    return read_llama(
        fields,
        context_length,
        norm=read_norm(fields, offset=1.0),
        attention={**read_attention_bias(fields), **attention},
        feed_forward=feed_forward,
        block=block,
        embedding_scale=fields.take("hidden_size") ** 0.5,
        logit_softcap=logit_softcap,
    )


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Gemma config.json."""
    # The first releases have "gelu", which is the tanh approximation there.
    activations = ACTIVATIONS | {"gelu": ACTIVATIONS["gelu_pytorch_tanh"]}
    activation = fields.choice("hidden_act", activations)
    # transformers 4.38 to 4.47 read hidden_activation instead; its default was the tanh approximation.
    other = fields.choice("hidden_activation", activations, fields.take("hidden_act"))
    if activation != other:
        raise ConfigError(
            f"config.json has hidden_act = {fields.take('hidden_act')!r} and hidden_activation = "
            f"{fields.take('hidden_activation')!r}; versions of transformers differ in which of them they use."
        )
    return read_gemma(fields, context_length, attention={}, feed_forward=activation)


FAMILY = Family(
    summary="Gemma 1 and CodeGemma",
    read_config=read_config,
    tensors=TENSORS,
    defaults={
        "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    },
    reads_is_causal=True,
)  # fmt: skip
