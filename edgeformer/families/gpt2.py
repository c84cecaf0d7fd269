"""GPT-2, DistilGPT2, DialoGPT.

Source: transformers/models/gpt2/modeling_gpt2.py.
"""

from dataclasses import replace

from edgeformer.config import BlockConfig, DecoderConfig, FeedForwardConfig, LearnedPositions, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields, packed_qkv
from edgeformer.families._rotary import read_context_length


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GPT-2 config.json."""
    fields.ignore("attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx", "reorder_and_upcast_attn")
    # Options of a multiple-choice head.
    fields.ignore("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type")
    fields.ignore("summary_use_proj")
    fields.choice("add_cross_attention", {False: None}, False)
    hidden_size, num_heads = fields.take("n_embd"), fields.take("n_head")
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_epsilon", 1e-5), bias=True)
    attention = multi_head(hidden_size, num_heads, bias=True)
    scale = attention.scale if fields.take("scale_attn_weights", True) else 1.0
    feed_forward = FeedForwardConfig(
        intermediate_size=fields.take("n_inner", 4 * hidden_size),
        **fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        gated=False,
        bias=True,
    )
    by_layer = fields.take("scale_attn_by_inverse_layer_idx", False)
    scales = [scale / (layer + 1 if by_layer else 1) for layer in range(fields.take("n_layer"))]
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length, "n_positions"),
        blocks=tuple(
            BlockConfig(attention=replace(attention, scale=scale), feed_forward=feed_forward, norm=norm)
            for scale in scales
        ),
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings", True),
        position_embedding=LearnedPositions(rows=fields.take("n_positions")),
    )


FAMILY = Family(
    summary="GPT-2, DistilGPT2, DialoGPT; every option of attention scaling",
    read_config=read_config,
    tensors={
        "embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "blocks.*.attention_norm": "transformer.h.*.ln_1",
        **packed_qkv("transformer.h.*.attn.c_attn"),
        "blocks.*.attention.output": "transformer.h.*.attn.c_proj",
        "blocks.*.feed_forward_norm": "transformer.h.*.ln_2",
        "blocks.*.feed_forward.up": "transformer.h.*.mlp.c_fc",
        "blocks.*.feed_forward.down": "transformer.h.*.mlp.c_proj",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    transposed=("transformer.h.*.c_attn", "transformer.h.*.c_proj", "transformer.h.*.c_fc"),
    optional_prefix="transformer.",
    computed_tensors={
        r"transformer\.h\.\d+\.attn\.bias": "causal_mask",
        r"transformer\.h\.\d+\.attn\.masked_bias": "masking_value",
    },
)
