"""Llama 1–3, TinyLlama, SmolLM2, and whatever else calls itself `llama`.

Source: transformers/models/llama/modeling_llama.py.
"""

from edgeformer.config import AttentionConfig, BlockConfig, FeedForwardConfig, ModelConfig, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length, read_rotary


def read_config(fields: Fields, context_length: int | None) -> ModelConfig:
    """Read a Llama config.json."""
    # Tensor-parallel slices of the training run; the sum is the same.
    fields.ignore("pretraining_tp")
    hidden_size = fields.take("hidden_size")
    num_heads = fields.take("num_attention_heads")
    head_dim = fields.take("head_dim", hidden_size // num_heads)
    context_length = read_context_length(fields, context_length)
    attention_bias = fields.take("attention_bias", False)
    norm = NormConfig(eps=fields.take("rms_norm_eps", 1e-6))
    block = BlockConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=fields.take("num_key_value_heads", num_heads),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            rotary=read_rotary(fields, head_dim, context_length),
        ),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("intermediate_size"),
            **fields.choice("hidden_act", ACTIVATIONS, "silu"),
            bias=fields.take("mlp_bias", False),
        ),
        norm=norm,
    )
    return ModelConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=context_length,
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings", False),
    )


FAMILY = Family(
    summary="Llama 1–3, TinyLlama, SmolLM2; every RoPE scaling of transformers, biases, tied or free heads",
    read_config=read_config,
    tensors={
        "embedding": "model.embed_tokens",
        "blocks.*.attention_norm": "model.layers.*.input_layernorm",
        "blocks.*.attention.query": "model.layers.*.self_attn.q_proj",
        "blocks.*.attention.key": "model.layers.*.self_attn.k_proj",
        "blocks.*.attention.value": "model.layers.*.self_attn.v_proj",
        "blocks.*.attention.output": "model.layers.*.self_attn.o_proj",
        "blocks.*.feed_forward_norm": "model.layers.*.post_attention_layernorm",
        "blocks.*.feed_forward.gate": "model.layers.*.mlp.gate_proj",
        "blocks.*.feed_forward.up": "model.layers.*.mlp.up_proj",
        "blocks.*.feed_forward.down": "model.layers.*.mlp.down_proj",
        "final_norm": "model.norm",
        "head": "lm_head",
    },
    # Old checkpoints stored a table that the config determines; a tied head is the embedding, also where both are
    # stored.
    ignored_tensors=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)
