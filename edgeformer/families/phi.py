"""Phi-1, Phi-1.5, Phi-2.

Llama-like with a parallel residual, one LayerNorm, partial rotary embeddings, and biases in all layers and the head.
Source: transformers/models/phi/modeling_phi.py.
"""

from edgeformer.config import DecoderConfig, NormConfig, QKNormConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Phi config.json."""
    fields.ignore("embd_pdrop", "resid_pdrop")
    fields.choice("tie_word_embeddings", {False: None}, False)
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_eps", 1e-5), bias=True)
    qk_norm = QKNormConfig(norm=norm, over="head") if fields.take("qk_layernorm", False) else None
    return read_llama(
        fields,
        context_length,
        norm=norm,
        fraction=0.5,
        attention={"qkv_bias": True, "output_bias": True, "qk_norm": qk_norm},
        feed_forward={"gated": False, "bias": True},
        block={"residual": "parallel_one_norm"},
        head_bias=True,
    )


FAMILY = Family(
    summary="Phi-1, Phi-1.5, Phi-2; partial rotary, normalized queries and keys",
    read_config=read_config,
    defaults={"hidden_act": "gelu_new"},
    tensors={
        **TENSORS,
        "blocks.*.attention.query_norm": "model.layers.*.self_attn.q_layernorm",
        "blocks.*.attention.key_norm": "model.layers.*.self_attn.k_layernorm",
        "blocks.*.attention.output": "model.layers.*.self_attn.dense",
        "blocks.*.feed_forward.up": "model.layers.*.mlp.fc1",
        "blocks.*.feed_forward.down": "model.layers.*.mlp.fc2",
        "final_norm": "model.final_layernorm",
    },
)
