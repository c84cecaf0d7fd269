"""Functions that Qwen3-Next and Qwen3.5 share: Gated DeltaNet in most layers, gated attention in the others.

Source: transformers/models/qwen3_next/modeling_qwen3_next.py and models/qwen3_5/modeling_qwen3_5.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import BlockConfig, DecoderConfig, DeltaNetConfig, QKNormConfig
from edgeformer.families._experts import Tables
from edgeformer.families._family import Fields, Packed
from edgeformer.families._layers import FULL, read_layer_types
from edgeformer.families._rotary import read_context_length, read_rotary
from edgeformer.families.llama import NO_CHANGES, QK_NORM_TENSORS, read_attention_bias, read_llama, read_norm

LINEAR = "linear_attention"
"""Name of a layer type of transformers."""

Q_PROJ = "model.layers.*.self_attn.q_proj"
GATED_TENSORS: Tables = {
    **QK_NORM_TENSORS,
    "blocks.*.attention.query": Packed(Q_PROJ, 0, "heads"),
    "blocks.*.attention.gate": Packed(Q_PROJ, 1, "heads"),
}
"""Tensor names of attention whose query projection also makes the gate."""

DELTA_TENSORS: Tables = {
    "blocks.*.recurrent.query_key_value": "model.layers.*.linear_attn.in_proj_qkv",
    "blocks.*.recurrent.gate": "model.layers.*.linear_attn.in_proj_z",
    "blocks.*.recurrent.beta": "model.layers.*.linear_attn.in_proj_b",
    "blocks.*.recurrent.decay": "model.layers.*.linear_attn.in_proj_a",
    "blocks.*.recurrent.conv_weight": "model.layers.*.linear_attn.conv1d.weight",
    "blocks.*.recurrent.step_bias": "model.layers.*.linear_attn.dt_bias",
    "blocks.*.recurrent.decay_rate_log": "model.layers.*.linear_attn.A_log",
    "blocks.*.recurrent.norm": "model.layers.*.linear_attn.norm",
    "blocks.*.recurrent.output": "model.layers.*.linear_attn.out_proj",
}

DEFAULTS = {
    "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip


def read_gated(
    fields: Fields, context_length: int | None, feed_forward: Mapping[str, Any] = NO_CHANGES
) -> DecoderConfig:
    """Read what Qwen3-Next and Qwen3.5 share; feed_forward: fields of FeedForwardConfig that differ."""
    # Layers of multi-token prediction, which `with_mtp` reads, and the type that states have in training.
    fields.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    fields.choice("attn_output_gate", {True: True}, True)
    fields.choice("output_gate_type", {"swish": "silu", "silu": "silu"}, "silu")
    activation = fields.choice("hidden_act", {"silu": "silu"}, "silu")  # of the convolution, too
    norm = read_norm(fields, offset=1.0)
    # Positions have three axes, which are equal for tokens of a text.
    length, known = read_context_length(fields, context_length), ("mrope_section", "mrope_interleaved")
    config = read_llama(
        fields,
        context_length,
        norm=norm,
        attention={
            "rotary": read_rotary(fields, fields.take("head_dim"), length, fraction=0.25, known=known),
            "qk_norm": QKNormConfig(norm=norm, over="head"),
            "output_gate": True,
            **read_attention_bias(fields),
        },
        feed_forward={"activation": activation, **feed_forward},
    )
    return with_delta_net(fields, config)


def with_delta_net(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """Return the config with Gated DeltaNet in place of attention where `layer_types` say so."""
    delta_net = DeltaNetConfig(
        num_key_heads=fields.take("linear_num_key_heads"),
        num_value_heads=fields.take("linear_num_value_heads"),
        key_dim=fields.take("linear_key_head_dim"),
        value_dim=fields.take("linear_value_head_dim"),
        kernel_size=fields.take("linear_conv_kernel_dim"),
        norm_eps=config.blocks[0].norm.eps,
    )
    interval, layers = fields.take("full_attention_interval", 4), len(config.blocks)
    otherwise = [LINEAR if (layer + 1) % interval else FULL for layer in range(layers)]
    types = read_layer_types(fields, otherwise, LINEAR)

    def varied(block: BlockConfig, kind: str) -> BlockConfig:
        return block if kind == FULL else replace(block, attention=None, recurrent=delta_net)

    return replace(config, blocks=tuple(map(varied, config.blocks, types)))
