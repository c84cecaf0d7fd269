"""Granite with windows and attention sinks.

Granite with a sink in each head, a window in three of four layers, and a rotary base, or no positions, by layer.
Source: transformers/models/granite_swa/modeling_granite_swa.py.
"""

from dataclasses import replace
from typing import Any

from edgeformer.config import DecoderConfig
from edgeformer.families import granite
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, SLIDING, of_each_layer, read_layer_types, vary_attention, with_windows
from edgeformer.families.llama import TENSORS


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Granite config.json that has windows."""
    config = granite.read_config(fields, context_length)
    rotary, layers = config.attentions[0].rotary, len(config.blocks)
    assert rotary is not None
    bases = of_each_layer("layer_rope_theta", fields.take("layer_rope_theta", [rotary.base] * layers), layers)
    # A base of 0 says that the layer has no positions.
    changes: list[dict[str, Any]] = [
        {"sinks": True, "rotary": replace(rotary, base=float(base)) if base else None} for base in bases
    ]
    types = read_layer_types(fields, [SLIDING if layer % 4 else FULL for layer in range(layers)])
    return with_windows(vary_attention(config, changes), types, fields.take("sliding_window", None))


FAMILY = Family(
    summary="Granite with windows: sinks, rotary bases by layer",
    read_config=read_config,
    tensors={**TENSORS, "blocks.*.attention.sinks": "model.layers.*.self_attn.sinks"},
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "sliding_window": 128},
)
