"""OLMoE.

Experts in every layer, and norms of all query heads and all key heads. Source:
transformers/models/olmoe/modeling_olmoe.py.
"""

from edgeformer.config import DecoderConfig, QKNormConfig, RouterConfig
from edgeformer.families._experts import expert_tensors, read_experts, with_experts
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import QK_NORM_TENSORS, TENSORS, read_attention_bias, read_llama, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an OLMoE config.json."""
    qk_norm = QKNormConfig(norm=read_norm(fields), over="projection")
    fields.choice("clip_qkv", {None: None}, None)
    attention = {"qk_norm": qk_norm, **read_attention_bias(fields)}
    config = read_llama(fields, context_length, attention=attention)
    router = RouterConfig(scoring="softmax", normalized=fields.take("norm_topk_prob"))
    return with_experts(config, read_experts(fields, config.blocks[0].feed_forward, router, num_experts=64))


FAMILY = Family(
    summary="OLMoE: experts in every layer, norms of queries and keys",
    read_config=read_config,
    tensors=TENSORS | QK_NORM_TENSORS | expert_tensors("model.layers.*.mlp"),
    defaults={
        "rms_norm_eps": 1e-5, "norm_topk_prob": False, "num_experts_per_tok": 8,
    },
)  # fmt: skip
