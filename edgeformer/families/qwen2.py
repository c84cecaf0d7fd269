"""Qwen 1.5, Qwen2, Qwen2.5, and dense models derived from them.

Llama with biases on queries, keys and values, and windows in some layers. Source:
transformers/models/qwen2/modeling_qwen2.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, SLIDING, read_layer_types, read_used_window, with_windows
from edgeformer.families.llama import TENSORS, read_llama


def read_windows(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """Return the config with windows: without layer_types, all layers from max_window_layers on have one."""
    first, window = fields.take("max_window_layers"), read_used_window(fields)
    layers = range(len(config.blocks))
    otherwise = [SLIDING if window is not None and layer >= first else FULL for layer in layers]
    return with_windows(config, read_layer_types(fields, otherwise), window)


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Qwen2 config.json."""
    # Three-dimensional positions are for images.
    fields.choice("use_mrope", {False: False}, False)
    return read_windows(fields, read_llama(fields, context_length, attention={"qkv_bias": True}))


FAMILY = Family(
    summary="Qwen 1.5 to Qwen2.5: biases on queries, keys and values, windows by layer",
    read_config=read_config,
    tensors=TENSORS,
    defaults={
        "num_key_value_heads": 32, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
    },
    reads_is_causal=True,
)  # fmt: skip
