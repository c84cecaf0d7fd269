"""Hunyuan dense: 0.5B, 1.8B, 4B, 7B, and Hunyuan-MT.

Llama with norms of queries and keys after the rotary embedding, whose base may be stretched. Source:
transformers/models/hunyuan_v1_dense/modeling_hunyuan_v1_dense.py.
"""

from typing import Any

from edgeformer.config import DecoderConfig, QKNormConfig, RotaryConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import DEFAULT_BASE, read_rope_fields
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama, read_norm

# Fields of checkpoints that transformers ignores, with the only value that it computes.
FIXED = {
    "add_classification_head": False, "mlp_bias": False, "norm_type": "rms", "use_cla": False, "use_qk_norm": True,
    "use_rotary_pos_emb": True,
}  # fmt: skip


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Hunyuan config.json."""
    # Fields of the training, token ids, and options of features that FIXED switches off.
    fields.ignore("pretraining_tp", "eod_token_id", "org_vocab_size", "pad_id", "sep_token_id")
    fields.ignore("cla_share_factor", "class_num", "dense_list", "pool_type")
    for name, value in FIXED.items():
        fields.choice(name, {value: None}, value)
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    fields.choice("attention_head_dim", {head_dim: None}, head_dim)
    return read_llama(
        fields,
        context_length,
        attention={
            "qk_norm": QKNormConfig(norm=read_norm(fields), over="head", after_rotary=True),
            **read_attention_bias(fields),
            **_stretched_rotary(fields, head_dim),
        },
    )


def _stretched_rotary(fields: Fields, head_dim: int) -> dict[str, Any]:
    """Return rotary embeddings with the base · alpha^(D / (D − 2)); nothing where config.json has no alpha.

    Checkpoints call it "dynamic", but it does not depend on the length of the text, and beside alpha nothing else in
    the rope parameters has an effect.
    """
    parameters = read_rope_fields(fields)
    kind, alpha = parameters.get("rope_type") or parameters.get("type"), parameters.get("alpha")
    if kind != "dynamic" or not alpha:
        return {}
    base = fields.take("rope_theta", DEFAULT_BASE)
    base = (parameters.get("rope_theta") or base) * alpha ** (head_dim / (head_dim - 2))
    return {"rotary": RotaryConfig(rotary_dim=head_dim, base=base, interleaved=False, scaling=None)}


FAMILY = Family(
    summary="Hunyuan, dense: norms of queries and keys after rotary embeddings of a stretched base",
    read_config=read_config,
    tensors={
        **TENSORS,
        "blocks.*.attention.query_norm": "model.layers.*.self_attn.query_layernorm",
        "blocks.*.attention.key_norm": "model.layers.*.self_attn.key_layernorm",
    },
    defaults={"rms_norm_eps": 1e-5},
)
