"""Mistral 7B, Ministral, and other dense models with model_type `mistral`.

Llama with a window in every layer. Source: transformers/models/mistral/modeling_mistral.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import SLIDING, with_windows
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Mistral config.json."""
    config = read_llama(fields, context_length)
    window = fields.take("sliding_window", None)
    return config if window is None else with_windows(config, [SLIDING] * len(config.blocks), window)


FAMILY = Family(
    summary="Mistral 7B and its relatives: a window in every layer, or none",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    reads_is_causal=True,
)
