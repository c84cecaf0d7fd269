"""Bamba: Mamba-2 in most layers, attention in some.

Source: transformers/models/bamba/modeling_bamba.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families import llama
from edgeformer.families._family import Family, Fields
from edgeformer.families._mamba import read_state_space, state_space_tensors, with_state_spaces
from edgeformer.families.llama import read_attention_bias, read_llama, read_norm

TENSORS = {
    **llama.TENSORS,
    **state_space_tensors("model.layers.*.mamba"),
    "blocks.*.feed_forward_norm": "model.layers.*.pre_ff_layernorm",
    "blocks.*.feed_forward.gate": "model.layers.*.feed_forward.gate_proj",
    "blocks.*.feed_forward.up": "model.layers.*.feed_forward.up_proj",
    "blocks.*.feed_forward.down": "model.layers.*.feed_forward.down_proj",
    "final_norm": "model.final_layernorm",
}


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Bamba config.json."""
    # The first is for training, the second for generation.
    fields.ignore("z_loss_coefficient", "num_logits_to_keep")
    # transformers rotates half of each head whatever config.json says.
    fields.ignore("attn_rotary_emb", "partial_rotary_factor")
    norm = read_norm(fields)
    config = read_llama(
        fields,
        context_length,
        norm=norm,
        fraction=0.5,
        attention=read_attention_bias(fields),
        feed_forward={"bias": fields.take("mlp_bias", False)},
    )
    attended = fields.take("attn_layer_indices", [])
    otherwise = ["attention" if layer in attended else "mamba" for layer in range(len(config.blocks))]
    types = fields.take("layers_block_type", fields.take("layer_types", otherwise))
    return with_state_spaces(config, types, read_state_space(fields, config.hidden_size, norm_eps=norm.eps))


FAMILY = Family(
    summary="Bamba: Mamba-2 in most layers, attention in some",
    read_config=read_config,
    tensors=TENSORS,
    defaults={
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "mamba_n_heads": 128, "mamba_d_head": "auto",
        "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    },
)  # fmt: skip
