"""EXAONE 4.

Llama with norms after each branch instead of before it, norms of queries and keys, and windows in some layers; where
there are windows, the other layers have no positions. Source: transformers/models/exaone4/modeling_exaone4.py.
"""

from edgeformer.config import DecoderConfig, QKNormConfig
from edgeformer.families import olmo2
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import (
    every_nth_full,
    of_each_layer,
    read_layer_types,
    with_windows,
    without_rotary_where_full,
)
from edgeformer.families.llama import read_llama, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an EXAONE 4 config.json."""
    config = read_llama(
        fields,
        context_length,
        attention={"qk_norm": QKNormConfig(norm=read_norm(fields), over="head")},
        block={"norm_placement": "output"},
    )
    layers, window = len(config.blocks), fields.take("sliding_window", None)
    pattern = fields.take("sliding_window_pattern", 4)
    # Only a number says what each layer is; beside a pattern of letters, layer_types do.
    counted = isinstance(pattern, int) and pattern > 0
    otherwise = every_nth_full(pattern, layers) if counted else fields.take("layer_types")
    types = read_layer_types(fields, of_each_layer("layer_types", otherwise, layers))
    if window is not None:
        config = without_rotary_where_full(config, types)
    return with_windows(config, types, window)


FAMILY = Family(
    summary="EXAONE 4: norms after each branch, windows in three of four layers, the fourth without positions",
    read_config=read_config,
    tensors=olmo2.FAMILY.tensors,
    defaults={"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "sliding_window": 4096},
    reads_is_causal=True,
)
