"""Apertus.

Llama with norms of queries and keys, and a feed-forward without gate whose activation, xIELU, has trained slopes.
Source: transformers/models/apertus/modeling_apertus.py.
"""

from edgeformer.config import DecoderConfig, QKNormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length, read_rotary
from edgeformer.families.llama import QK_NORM_TENSORS, TENSORS, read_attention_bias, read_llama, read_norm

# Positions of a config.json that says nothing about them.
LONG = {
    "rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an Apertus config.json."""
    # Fields of checkpoints that transformers ignores, with the only value that it computes.
    for name, value in (("mlp_bias", False), ("post_norm", False), ("qk_norm", True)):
        fields.choice(name, {value: None}, value)
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    length = read_context_length(fields, context_length)
    attention = {
        "rotary": read_rotary(fields, head_dim, length, otherwise=LONG),
        "qk_norm": QKNormConfig(norm=read_norm(fields), over="head"),
        **read_attention_bias(fields),
    }
    activations = ACTIVATIONS | {"xielu": {"activation": "xielu"}}
    feed_forward = {**fields.choice("hidden_act", activations, "xielu"), "gated": False}
    return read_llama(fields, context_length, attention=attention, feed_forward=feed_forward)


FAMILY = Family(
    summary="Apertus: norms of queries and keys, an activation with trained slopes",
    read_config=read_config,
    tensors={
        **TENSORS,
        **QK_NORM_TENSORS,
        "blocks.*.attention_norm": "model.layers.*.attention_layernorm",
        "blocks.*.feed_forward_norm": "model.layers.*.feedforward_layernorm",
        "blocks.*.feed_forward.activation": "model.layers.*.mlp.act_fn",
    },
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 12000000.0},
)
