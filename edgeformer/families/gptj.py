"""GPT-J: parallel residual with one norm, interleaved rotary embeddings.

Source: transformers/models/gptj/modeling_gptj.py.
"""

from edgeformer.config import BlockConfig, DecoderConfig, FeedForwardConfig, NormConfig, RotaryConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import DEFAULT_BASE, read_context_length


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GPT-J config.json."""
    fields.ignore("attn_pdrop", "embd_pdrop", "resid_pdrop")
    # Options of a multiple-choice head.
    fields.ignore("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type")
    fields.ignore("summary_use_proj")
    # transformers ignores both.
    fields.choice("rotary", {True: None}, True)
    fields.choice("scale_attn_weights", {True: None}, True)
    hidden_size, num_heads = fields.take("n_embd"), fields.take("n_head")
    rotary_dim = fields.take("rotary_dim", 64)
    rotary = RotaryConfig(rotary_dim=rotary_dim, base=DEFAULT_BASE, interleaved=True, scaling=None)
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_epsilon", 1e-5), bias=True)
    block = BlockConfig(
        attention=multi_head(hidden_size, num_heads, bias=False, rotary=rotary),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("n_inner", 4 * hidden_size),
            **fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
            gated=False,
            bias=True,
        ),
        norm=norm,
        residual="parallel_one_norm",
    )
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length, "n_positions"),
        blocks=(block,) * fields.take("n_layer"),
        final_norm=norm,
        tied_head=fields.choice("tie_word_embeddings", {False: False}, False),
        head_bias=True,
    )


FAMILY = Family(
    summary="GPT-J; any rotary_dim",
    read_config=read_config,
    tensors={
        "embedding": "transformer.wte",
        "blocks.*.attention_norm": "transformer.h.*.ln_1",
        "blocks.*.attention.query": "transformer.h.*.attn.q_proj",
        "blocks.*.attention.key": "transformer.h.*.attn.k_proj",
        "blocks.*.attention.value": "transformer.h.*.attn.v_proj",
        "blocks.*.attention.output": "transformer.h.*.attn.out_proj",
        "blocks.*.feed_forward.up": "transformer.h.*.mlp.fc_in",
        "blocks.*.feed_forward.down": "transformer.h.*.mlp.fc_out",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    computed_tensors={
        r"transformer\.h\.\d+\.attn\.bias": "causal_mask",
        r"transformer\.h\.\d+\.attn\.masked_bias": "masking_value",
    },
)
