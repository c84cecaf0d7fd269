"""Pythia, GPT-NeoX-20B, Dolly, RedPajama-INCITE.

Source: transformers/models/gpt_neox/modeling_gpt_neox.py.
"""

from edgeformer.config import BlockConfig, DecoderConfig, FeedForwardConfig, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields, packed_qkv
from edgeformer.families._rotary import DEFAULT_BASE, read_context_length, read_rotary


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GPT-NeoX config.json."""
    fields.ignore("classifier_dropout", "hidden_dropout", "is_decoder")
    hidden_size, num_heads = fields.take("hidden_size"), fields.take("num_attention_heads")
    context_length = read_context_length(fields, context_length)
    fraction, base = fields.take("rotary_pct", 0.25), fields.take("rotary_emb_base", DEFAULT_BASE)
    rotary = read_rotary(fields, hidden_size // num_heads, context_length, fraction=fraction, base=base)
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_eps", 1e-5), bias=True)
    block = BlockConfig(
        attention=multi_head(hidden_size, num_heads, bias=fields.take("attention_bias", True), rotary=rotary),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("intermediate_size"),
            **fields.choice("hidden_act", ACTIVATIONS, "gelu"),
            gated=False,
            bias=True,
        ),
        norm=norm,
        residual="parallel" if fields.take("use_parallel_residual", True) else "serial",
    )
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=context_length,
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings", False),
    )


FAMILY = Family(
    summary="Pythia, GPT-NeoX-20B, Dolly, RedPajama; parallel or serial residual, partial rotary",
    read_config=read_config,
    tensors={
        "embedding": "gpt_neox.embed_in",
        "blocks.*.attention_norm": "gpt_neox.layers.*.input_layernorm",
        **packed_qkv("gpt_neox.layers.*.attention.query_key_value", "groups"),
        "blocks.*.attention.output": "gpt_neox.layers.*.attention.dense",
        "blocks.*.feed_forward_norm": "gpt_neox.layers.*.post_attention_layernorm",
        "blocks.*.feed_forward.up": "gpt_neox.layers.*.mlp.dense_h_to_4h",
        "blocks.*.feed_forward.down": "gpt_neox.layers.*.mlp.dense_4h_to_h",
        "final_norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
    },
    computed_tensors={
        r"gpt_neox\.layers\.\d+\.attention\.bias": "causal_mask",
        r"gpt_neox\.layers\.\d+\.attention\.masked_bias": "masking_value",
        r"gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq": "rotary_frequencies",
    },
)
