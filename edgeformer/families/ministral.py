"""Ministral 8B of 2024.

Mistral with a window in some layers. Source: transformers/models/ministral/modeling_ministral.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families import mistral
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, SLIDING, read_layer_types, with_windows
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Ministral config.json."""
    config, window = read_llama(fields, context_length), fields.take("sliding_window", None)
    types = read_layer_types(fields, [FULL if window is None else SLIDING] * len(config.blocks))
    return with_windows(config, types, window)


FAMILY = Family(
    summary="Ministral 8B: windows by layer",
    read_config=read_config,
    tensors=TENSORS,
    defaults=mistral.FAMILY.defaults,
    reads_is_causal=True,
)
