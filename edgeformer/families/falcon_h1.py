"""Falcon-H1: attention and Mamba-2 side by side in every layer, with factors of their inputs and outputs.

Source: transformers/models/falcon_h1/modeling_falcon_h1.py.
"""

from dataclasses import replace

from edgeformer.config import DecoderConfig
from edgeformer.families import bamba
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import check_layer_types
from edgeformer.families._mamba import read_state_space
from edgeformer.families.llama import read_llama, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Falcon-H1 config.json."""
    # Names of training, and generation; every layer has both kinds of state.
    fields.ignore("num_logits_to_keep", "mamba_use_mlp", "mlp_expansion_factor")
    norm = read_norm(fields)
    gate_scale, down_scale = fields.take("mlp_multipliers", (1.0, 1.0))
    hidden_size, num_heads = fields.take("hidden_size"), fields.take("num_attention_heads")
    head_dim = fields.take("head_dim", hidden_size // num_heads)
    config = read_llama(
        fields,
        context_length,
        norm=norm,
        attention={
            # Keys are scaled by key_multiplier, which is the same as scaling their products with queries.
            "scale": head_dim**-0.5 * fields.take("key_multiplier", 1.0),
            "qkv_bias": fields.take("attention_bias", False),
            "output_bias": fields.take("attention_bias", False),
            "input_scale": fields.take("attention_in_multiplier", 1.0),
            "output_scale": fields.take("attention_out_multiplier", 1.0),
        },
        feed_forward={"bias": fields.take("mlp_bias", False), "gate_scale": gate_scale, "output_scale": down_scale},
        embedding_scale=fields.take("embedding_multiplier", 1.0),
        logit_scale=fields.take("lm_head_multiplier", 1.0),
    )
    normed, before = fields.take("mamba_rms_norm", False), fields.take("mamba_norm_before_gate", True)
    check_layer_types(fields, "hybrid", len(config.blocks), "layers_block_type", "layer_types")
    recurrent = read_state_space(
        fields,
        hidden_size,
        output_bias=fields.take("projectors_bias", False),
        input_scale=fields.take("ssm_in_multiplier", 1.0),
        part_scales=tuple(fields.take("ssm_multipliers", (1.0,) * 5)),
        output_scale=fields.take("ssm_out_multiplier", 1.0),
        **({"norm_eps": norm.eps, "norm_before_gate": before} if normed else {"norm_eps": None, "norm_groups": 1}),
    )
    return replace(config, blocks=tuple(replace(block, recurrent=recurrent) for block in config.blocks))


FAMILY = Family(
    summary="Falcon-H1: attention and Mamba-2 side by side in every layer",
    read_config=read_config,
    tensors=bamba.TENSORS,
    defaults={**bamba.FAMILY.defaults, "mamba_d_ssm": 1024},
)
