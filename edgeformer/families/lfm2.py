"""LFM2: attention in some layers, gated short convolutions in the others.

Source: transformers/models/lfm2/modeling_lfm2.py.
"""

from dataclasses import replace

from edgeformer.config import BlockConfig, DecoderConfig, NormConfig, QKNormConfig, ShortConvConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, read_layer_types
from edgeformer.families.llama import read_llama

CONV = "conv"
"""Name of a layer type of LFM2 in transformers."""

TENSORS = {
    "embedding": "model.embed_tokens",
    "blocks.*.attention_norm": "model.layers.*.operator_norm",
    "blocks.*.attention.query": "model.layers.*.self_attn.q_proj",
    "blocks.*.attention.key": "model.layers.*.self_attn.k_proj",
    "blocks.*.attention.value": "model.layers.*.self_attn.v_proj",
    "blocks.*.attention.output": "model.layers.*.self_attn.out_proj",
    "blocks.*.attention.query_norm": "model.layers.*.self_attn.q_layernorm",
    "blocks.*.attention.key_norm": "model.layers.*.self_attn.k_layernorm",
    "blocks.*.recurrent.input": "model.layers.*.conv.in_proj",
    "blocks.*.recurrent.conv_weight": "model.layers.*.conv.conv.weight",
    "blocks.*.recurrent.conv_bias": "model.layers.*.conv.conv.bias",
    "blocks.*.recurrent.output": "model.layers.*.conv.out_proj",
    "blocks.*.feed_forward_norm": "model.layers.*.ffn_norm",
    "blocks.*.feed_forward.gate": "model.layers.*.feed_forward.w1",
    "blocks.*.feed_forward.up": "model.layers.*.feed_forward.w3",
    "blocks.*.feed_forward.down": "model.layers.*.feed_forward.w2",
    "final_norm": "model.embedding_norm",
    "head": "lm_head",
}


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an LFM2 config.json."""
    # Names that training used, which transformers does not read.
    fields.ignore("block_dim", "block_norm_eps", "block_mlp_init_scale", "block_out_init_scale", "block_use_swiglu")
    fields.ignore("block_use_xavier_init", "conv_use_xavier_init", "conv_dim", "conv_dim_out", "num_heads")
    fields.ignore("use_pos_enc", "theta")
    return read_lfm2(fields, context_length, read_intermediate_size(fields))


def read_lfm2(fields: Fields, context_length: int | None, intermediate_size: int) -> DecoderConfig:
    """Read the fields that LFM2 and its variant with experts share."""
    norm = NormConfig(eps=fields.take("norm_eps"))
    config = read_llama(
        fields,
        context_length,
        norm=norm,
        attention={"qk_norm": QKNormConfig(norm=norm, over="head")},
        feed_forward={"intermediate_size": intermediate_size, "activation": "silu", "gated": True},
        tied_head=fields.take("tie_embedding", fields.take("tie_word_embeddings")),
    )
    return with_convolutions(fields, config)


def read_intermediate_size(fields: Fields) -> int:
    """Read the width of the feed-forward network; with block_auto_adjust_ff_dim it follows from block_ff_dim."""
    width: int = fields.take("block_ff_dim", fields.take("intermediate_size"))
    multiplier = fields.take("block_ffn_dim_multiplier", 1.0)
    step = fields.take("block_multiple_of")
    if not fields.take("block_auto_adjust_ff_dim"):
        return width
    return -(-int(multiplier * int(2 * width / 3)) // step) * step


def with_convolutions(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """Return the config with short convolutions in place of attention where `layer_types` say so."""
    conv = ShortConvConfig(
        channels=config.hidden_size, kernel_size=fields.take("conv_L_cache"), bias=fields.take("conv_bias")
    )
    full = fields.take("full_attn_idxs", list(range(len(config.blocks))))
    otherwise = [FULL if layer in full else CONV for layer in range(len(config.blocks))]
    types = read_layer_types(fields, otherwise, CONV)

    def varied(block: BlockConfig, kind: str) -> BlockConfig:
        return block if kind == FULL else replace(block, attention=None, recurrent=conv)

    return replace(config, blocks=tuple(map(varied, config.blocks, types)))


FAMILY = Family(
    summary="LFM2 and LFM2.5, dense: short convolutions, and attention in some layers",
    read_config=read_config,
    tensors=TENSORS,
    defaults={
        "norm_eps": 1e-5, "conv_L_cache": 3, "conv_bias": False, "block_multiple_of": 256,
        "block_auto_adjust_ff_dim": True, "num_key_value_heads": 8, "tie_word_embeddings": True,
        "intermediate_size": 12288, "rope_theta": 1000000.0,
    },
)  # fmt: skip
