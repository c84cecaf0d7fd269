"""SmolLM3.

Llama without rotary embeddings in every fourth layer. Source: transformers/models/smollm3/modeling_smollm3.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import (
    FULL,
    SLIDING,
    of_each_layer,
    read_layer_types,
    read_used_window,
    vary_attention,
    with_windows,
)
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a SmolLM3 config.json."""
    # Fields of the training, and fields of Qwen2 whose config class this one is derived from.
    fields.ignore("pretraining_tp", "max_window_layers")
    config = read_llama(
        fields,
        context_length,
        attention=read_attention_bias(fields),
        feed_forward={"bias": fields.take("mlp_bias", False)},
    )
    layers, interval = len(config.blocks), fields.take("no_rope_layer_interval")
    rotated = fields.take("no_rope_layers", [(layer + 1) % interval for layer in range(layers)])
    rotated = of_each_layer("no_rope_layers", rotated, layers)
    window = read_used_window(fields)
    types = read_layer_types(fields, [FULL if rotates or window is None else SLIDING for rotates in rotated])
    config = vary_attention(config, ({} if rotates else {"rotary": None} for rotates in rotated))
    return with_windows(config, types, window)


FAMILY = Family(
    summary="SmolLM3: layers without positions, which may have a window",
    read_config=read_config,
    tensors=TENSORS,
    defaults={
        "num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2000000.0, "no_rope_layer_interval": 4,
        "use_sliding_window": False,
    },
    reads_is_causal=True,
)  # fmt: skip
