"""Granite 4: Mamba-2 in most layers or in none, and in each a dense network or experts beside it.

Granite-MoE-Shared with state spaces, and with or without positions. Source:
transformers/models/granitemoehybrid/modeling_granitemoehybrid.py.
"""

from dataclasses import replace

from edgeformer.config import DecoderConfig, FeedForwardConfig
from edgeformer.families import granite
from edgeformer.families._experts import TRAINING
from edgeformer.families._family import Family, Fields, Packed
from edgeformer.families._layers import vary_attention
from edgeformer.families._mamba import read_state_space, state_space_tensors, with_state_spaces
from edgeformer.families.granitemoe import EXPERT_TENSORS, read_granite_experts
from edgeformer.families.granitemoeshared import SHARED_TENSORS
from edgeformer.families.llama import read_norm

DENSE = "model.layers.*.shared_mlp"
"""The network of all tokens, in models without experts, too."""


def read_networks(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """Return the config with experts beside a shared network, or with that network alone if there are no experts."""
    dense = config.blocks[0].feed_forward
    assert isinstance(dense, FeedForwardConfig)
    shared = replace(dense, intermediate_size=fields.take("shared_intermediate_size"))
    if fields.take("num_local_experts", 8):
        return read_granite_experts(fields, config, shared=shared)
    fields.ignore("num_experts_per_tok", *TRAINING)
    return replace(config, blocks=tuple(replace(block, feed_forward=shared) for block in config.blocks))


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Granite 4 config.json."""
    # How the weights are initialized.
    fields.ignore("init_method")
    fields.choice("normalization_function", {"rmsnorm": None}, "rmsnorm")
    fields.choice("mlp_bias", {False: False}, False)
    config = read_networks(fields, granite.read_config(fields, context_length))
    if not fields.choice("position_embedding_type", {"rope": True, "nope": False}, "nope"):
        config = vary_attention(config, [{"rotary": None}] * len(config.blocks))
    types = fields.take("layers_block_type", fields.take("layer_types", ["mamba"] * len(config.blocks)))
    recurrent = read_state_space(fields, config.hidden_size, norm_eps=read_norm(fields).eps)
    return with_state_spaces(config, types, recurrent)


FAMILY = Family(
    summary="Granite 4: Mamba-2 or attention by layer, experts or a dense network, with or without positions",
    read_config=read_config,
    tensors={
        **EXPERT_TENSORS,
        **SHARED_TENSORS,
        **state_space_tensors("model.layers.*.mamba"),
        "blocks.*.feed_forward.gate": Packed(f"{DENSE}.input_linear", 0),
        "blocks.*.feed_forward.up": Packed(f"{DENSE}.input_linear", 1),
        "blocks.*.feed_forward.down": f"{DENSE}.output_linear",
    },
    defaults={
        "intermediate_size": 11008, "num_experts_per_tok": 2, "shared_intermediate_size": 1024, "mamba_n_heads": 128,
        "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4, "mamba_expand": 2,
        "mamba_conv_bias": True, "mamba_proj_bias": False,
    },
)  # fmt: skip
