"""Falcon, both architectures: that of 7B (multi-query, one norm) and that of 40B (grouped-query, two norms).

Source: transformers/models/falcon/modeling_falcon.py.
"""

from typing import Literal

from edgeformer.config import BlockConfig, DecoderConfig, FeedForwardConfig, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields, packed_qkv
from edgeformer.families._rotary import read_context_length, read_rotary


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Falcon config.json."""
    fields.ignore("hidden_dropout")
    # With ALiBi, transformers rounds slope · position to bfloat16; edgeformer has no such bias.
    fields.choice("alibi", {False: None}, False)
    fields.choice("apply_residual_connection_post_layernorm", {False: None}, False)
    hidden_size, num_heads = fields.take("hidden_size"), fields.take("num_attention_heads")
    context_length = read_context_length(fields, context_length)
    new = fields.take("new_decoder_architecture", False)
    bias = fields.take("bias", False)
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_epsilon", 1e-5), bias=True)
    block = BlockConfig(
        attention=multi_head(
            hidden_size,
            num_heads,
            bias=bias,
            num_kv_heads=_read_kv_heads(fields, num_heads, new),
            rotary=read_rotary(fields, hidden_size // num_heads, context_length),
        ),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("ffn_hidden_size", 4 * hidden_size),
            **fields.choice("activation", ACTIVATIONS, "gelu"),
            gated=False,
            bias=bias,
        ),
        norm=norm,
        residual=_read_residual(fields, new),
    )
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=context_length,
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings", True),
    )


def _read_kv_heads(fields: Fields, num_heads: int, new: bool) -> int:
    multi_query = fields.take("multi_query", True)
    if new:
        kv_heads: int = fields.take("num_kv_heads", num_heads)
        return kv_heads
    if multi_query:
        fields.ignore("num_kv_heads")
        return 1
    fields.choice("num_kv_heads", {num_heads: None}, num_heads)
    return num_heads


def _read_residual(fields: Fields, new: bool) -> Literal["serial", "parallel", "parallel_one_norm"]:
    """Read the kind of residual. The new architecture is always parallel, and only it may have two norms."""
    parallel = fields.choice("parallel_attn", {True: True} if new else {True: True, False: False}, True)
    norms = fields.choice("num_ln_in_parallel_attn", {1: 1, 2: 2} if new else {1: 1}, 2 if new else 1)
    return "serial" if not parallel else "parallel" if norms == 2 else "parallel_one_norm"


FAMILY = Family(
    summary="Falcon 7B, 40B, 180B, Falcon 2; not with ALiBi",
    read_config=read_config,
    defaults={"max_position_embeddings": 2048},
    tensors={
        "embedding": "transformer.word_embeddings",
        "blocks.*.attention_norm": "transformer.h.*.input_layernorm|transformer.h.*.ln_attn",
        **packed_qkv("transformer.h.*.self_attention.query_key_value", "groups"),
        "blocks.*.attention.output": "transformer.h.*.self_attention.dense",
        "blocks.*.feed_forward_norm": "transformer.h.*.post_attention_layernorm|transformer.h.*.ln_mlp",
        "blocks.*.feed_forward.up": "transformer.h.*.mlp.dense_h_to_4h",
        "blocks.*.feed_forward.down": "transformer.h.*.mlp.dense_4h_to_h",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    computed_tensors={r"transformer\.h\.\d+\.self_attention\.rotary(_emb)?\.inv_freq": "rotary_frequencies"},
)
