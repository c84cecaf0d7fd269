"""Ministral 3: 3B, 8B and 14B of 2025.

Mistral with queries that grow with the position, beyond the length of pre-training. Source:
transformers/models/ministral3/modeling_ministral3.py.
"""

from typing import Any

from edgeformer.config import DecoderConfig, QueryTemperature
from edgeformer.errors import ConfigError
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import SLIDING, with_windows
from edgeformer.families._rotary import read_context_length, read_rope_fields, read_rotary
from edgeformer.families.llama import TENSORS, read_llama

# Rope parameters of a config.json that has none.
LONG = {
    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
LENGTH, GROWTH = "original_max_position_embeddings", "llama_4_scaling_beta"


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Ministral 3 config.json."""
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    length, known = read_context_length(fields, context_length), (GROWTH, "max_position_embeddings")
    rotary = read_rotary(fields, head_dim, length, otherwise=LONG, known=known)
    parameters: dict[str, Any] = read_rope_fields(fields) or dict(LONG)
    for name in (LENGTH, GROWTH):
        if parameters.get(name) is None:
            raise ConfigError(f"config.json's rope_parameters have no {name}; a ministral3 model requires it.")
    temperature = QueryTemperature(floor_scale=parameters[LENGTH], scale=parameters[GROWTH], first=0)
    grows = length > parameters[LENGTH]
    attention = {"rotary": rotary, "query_temperature": temperature if grows else None}
    config = read_llama(fields, context_length, attention=attention)
    window = fields.take("sliding_window", None)
    return config if window is None else with_windows(config, [SLIDING] * len(config.blocks), window)


FAMILY = Family(
    summary="Ministral 3: queries that grow with the position",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5},
)
