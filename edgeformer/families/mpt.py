"""MPT with ALiBi, as transformers computes it.

Source: transformers/models/mpt/modeling_mpt.py. It ignores most fields; models whose fields differ from what it
computes are refused.
"""

from dataclasses import replace

from edgeformer.config import AlibiConfig, AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig, NormConfig
from edgeformer.families._alibi import alibi_slopes
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields, packed_qkv
from edgeformer.families._rotary import read_context_length


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an MPT config.json."""
    # Options of training; with ALiBi there are no learned positions, whatever learned_pos_emb says.
    fields.ignore("emb_pdrop", "embedding_fraction", "init_config", "init_device", "learned_pos_emb", "resid_pdrop")
    fields.ignore("tokenizer_name", "verbose")
    fields.choice("expansion_ratio", {4: None}, 4)
    fields.choice("logit_scale", {1: None}, 1)
    fields.choice("no_bias", {True: None}, True)
    fields.choice("norm_type", dict.fromkeys(("low_precision_layernorm", "layernorm")), "low_precision_layernorm")
    hidden_size, num_heads = fields.take("d_model"), fields.take("n_heads")
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_epsilon", 1e-5))
    block = BlockConfig(
        attention=_read_attention(
            Fields({**fields.take("attn_config", {}), "model_type": "mpt"}), hidden_size, num_heads
        ),
        feed_forward=FeedForwardConfig(intermediate_size=4 * hidden_size, activation="gelu", gated=False, bias=False),
        norm=norm,
    )
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length, "max_seq_len"),
        blocks=(block,) * fields.take("n_layers"),
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings", True),
    )


def _read_attention(fields: Fields, hidden_size: int, num_heads: int) -> AttentionConfig:
    fields.ignore("attn_impl", "attn_pdrop", "attn_uses_sequence_id", "is_encoder_decoder")
    fields.choice("attn_type", {"multihead_attention": None}, "multihead_attention")
    for name in ("prefix_lm", "qk_ln"):
        fields.choice(name, {False: None}, False)
    fields.choice("alibi", {True: None}, True)
    fields.choice("alibi_bias_max", {8: None}, 8)
    slopes, clip, scale = alibi_slopes(num_heads), fields.take("clip_qkv", None), fields.take("softmax_scale", None)
    fields.finish()
    attention = multi_head(
        hidden_size, num_heads, bias=False, relative=AlibiConfig(slopes=slopes), qkv_clip=clip or None
    )
    return attention if scale is None else replace(attention, scale=scale)


FAMILY = Family(
    summary="MPT with ALiBi; clipped queries, keys and values, any attention scale",
    read_config=read_config,
    tensors={
        "embedding": "transformer.wte",
        "blocks.*.attention_norm": "transformer.blocks.*.norm_1",
        **packed_qkv("transformer.blocks.*.attn.Wqkv"),
        "blocks.*.attention.output": "transformer.blocks.*.attn.out_proj",
        "blocks.*.feed_forward_norm": "transformer.blocks.*.norm_2",
        "blocks.*.feed_forward.up": "transformer.blocks.*.ffn.up_proj",
        "blocks.*.feed_forward.down": "transformer.blocks.*.ffn.down_proj",
        "final_norm": "transformer.norm_f",
        "head": "lm_head",
    },
)
