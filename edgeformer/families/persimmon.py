"""Persimmon.

Llama-like with LayerNorm, also of queries and keys, partial rotary embeddings, biases, and a feed-forward without gate.
Source: transformers/models/persimmon/modeling_persimmon.py.
"""

from edgeformer.config import DecoderConfig, NormConfig, QKNormConfig
from edgeformer.families._family import Family, Fields, packed_qkv
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Persimmon config.json."""
    fields.ignore("hidden_dropout")
    num_heads = fields.take("num_attention_heads")
    fields.choice("num_key_value_heads", {num_heads: None}, num_heads)
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_eps", 1e-5), bias=True)
    qk_norm = QKNormConfig(norm=norm, over="head") if fields.take("qk_layernorm") else None
    return read_llama(
        fields,
        context_length,
        norm=norm,
        fraction=0.5,
        attention={"qkv_bias": True, "output_bias": True, "qk_norm": qk_norm},
        feed_forward={"gated": False, "bias": True},
    )


FAMILY = Family(
    summary="Persimmon: norms of queries and keys, partial rotary, squared ReLU",
    read_config=read_config,
    tensors={
        **TENSORS,
        **packed_qkv("model.layers.*.self_attn.query_key_value", "groups"),
        "blocks.*.attention.query_norm": "model.layers.*.self_attn.q_layernorm",
        "blocks.*.attention.key_norm": "model.layers.*.self_attn.k_layernorm",
        "blocks.*.attention.output": "model.layers.*.self_attn.dense",
        "blocks.*.feed_forward.up": "model.layers.*.mlp.dense_h_to_4h",
        "blocks.*.feed_forward.down": "model.layers.*.mlp.dense_4h_to_h",
        "final_norm": "model.final_layernorm",
    },
    defaults={"hidden_act": "relu2", "qk_layernorm": True},
)
