"""StableLM-3B-4E1T, StableLM 2, Stable Code.

Llama with LayerNorm, partial rotary embeddings, and a serial or parallel residual.
Source: transformers/models/stablelm/modeling_stablelm.py.
"""

from edgeformer.config import DecoderConfig, NormConfig, QKNormConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a StableLM config.json."""
    fields.ignore("hidden_dropout")
    head_dim = fields.take("hidden_size") // fields.take("num_attention_heads")
    fields.choice("head_dim", {head_dim: None}, head_dim)
    eps = fields.take("layer_norm_eps", 1e-5)
    qk_norm = QKNormConfig(norm=NormConfig(kind="layer_norm", eps=eps), over="each_head")
    return read_llama(
        fields,
        context_length,
        norm=NormConfig(kind="layer_norm", eps=eps, bias=True),
        fraction=0.25,
        attention={
            "qkv_bias": fields.take("use_qkv_bias", False),
            "qk_norm": qk_norm if fields.take("qk_layernorm", False) else None,
        },
        block={"residual": "parallel_one_norm" if fields.take("use_parallel_residual", False) else "serial"},
    )


FAMILY = Family(
    summary="StableLM-3B, StableLM 2, Stable Code; serial or parallel, norms per head, partial rotary",
    read_config=read_config,
    tensors={
        **TENSORS,
        "blocks.*.attention.query_norm": "model.layers.*.self_attn.q_layernorm.norms.#",
        "blocks.*.attention.key_norm": "model.layers.*.self_attn.k_layernorm.norms.#",
    },
    defaults={"num_key_value_heads": 32},
)
