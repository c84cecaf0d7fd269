"""Gemma 2.

Gemma with norms before and after each branch, windows in every second layer, and softcaps of scores and logits.
Source: transformers/models/gemma2/modeling_gemma2.py.
"""

from typing import Any

from edgeformer.config import DecoderConfig, RotaryConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import every_nth_full, read_layer_types, with_windows
from edgeformer.families.gemma import read_gemma
from edgeformer.families.llama import TENSORS


def read_gemma2(
    fields: Fields,
    context_length: int | None,
    pattern: int,
    attention: dict[str, Any],
    norm_placement: str = "sandwich",
    rotary: RotaryConfig | None = None,
    both_ways: bool = False,
) -> DecoderConfig:
    """Read the fields that Gemma 2, Gemma 3 and VaultGemma share.

    pattern: without layer_types, every pattern-th layer has full attention, the others a window. rotary: of layers
    with a window, where it differs. both_ways: whether a window is half in front of a token and half behind it.
    """
    # hidden_act is a field of Gemma 1; cache_implementation is for generate().
    fields.ignore("hidden_act", "cache_implementation")
    config = read_gemma(
        fields,
        context_length,
        attention={"scale": fields.take("query_pre_attn_scalar") ** -0.5, **attention},
        feed_forward=fields.choice("hidden_activation", ACTIVATIONS),
        both_ways=both_ways,
        block={"norm_placement": norm_placement},
        logit_softcap=fields.take("final_logit_softcapping", None),
    )
    types = read_layer_types(fields, every_nth_full(pattern, len(config.blocks)))
    window = fields.take("sliding_window", None)
    if both_ways and window is not None:
        window = window // 2 + 1
    return with_windows(config, types, window, rotary)


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Gemma 2 config.json."""
    softcap = fields.take("attn_logit_softcapping", None)
    return read_gemma2(fields, context_length, pattern=2, attention={"softcap": softcap})


FAMILY = Family(
    summary="Gemma 2: windows in every second layer, softcaps of scores and logits",
    read_config=read_config,
    tensors=TENSORS
    | {
        "blocks.*.attention_output_norm": "model.layers.*.post_attention_layernorm",
        "blocks.*.feed_forward_norm": "model.layers.*.pre_feedforward_layernorm",
        "blocks.*.feed_forward_output_norm": "model.layers.*.post_feedforward_layernorm",
    },
    defaults={
        "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
        "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
)  # fmt: skip
