"""Code World Model.

Llama with a window in three of four layers. Source: transformers/models/cwm/modeling_cwm.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, SLIDING, read_layer_types, with_windows
from edgeformer.families._rotary import read_context_length, read_rotary
from edgeformer.families.llama import TENSORS, read_llama

# Rope parameters of a config.json that has none.
LONG = {
    "rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Code World Model config.json."""
    fields.ignore("pretraining_tp")  # tensor parallelism of the training
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    rotary = read_rotary(fields, head_dim, read_context_length(fields, context_length), otherwise=LONG)
    feed_forward = {"bias": fields.take("mlp_bias", False)}
    config = read_llama(fields, context_length, attention={"rotary": rotary}, feed_forward=feed_forward)
    types = read_layer_types(fields, [SLIDING if layer % 4 else FULL for layer in range(len(config.blocks))])
    return with_windows(config, types, fields.take("sliding_window"))


FAMILY = Family(
    summary="Code World Model: windows in three of four layers",
    read_config=read_config,
    tensors=TENSORS,
    defaults={
        "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
        "sliding_window": 8192,
    },
)  # fmt: skip
