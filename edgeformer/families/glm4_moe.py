"""GLM-4.5 and GLM-4.6.

Grouped heads with partial rotary positions, and the experts of DeepSeek-V3. Source:
transformers/models/glm4_moe/modeling_glm4_moe.py.
"""

from edgeformer.config import DecoderConfig, QKNormConfig
from edgeformer.families._experts import (
    DEEPSEEK_TRAINING,
    after_dense,
    deepseek_tensors,
    read_biased_router,
    read_with_shared,
    with_experts,
)
from edgeformer.families._family import Family, Fields
from edgeformer.families._mtp import BEHIND_LAST, behind
from edgeformer.families.llama import QK_NORM_TENSORS, TENSORS, read_llama, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GLM-4-MoE config.json."""
    fields.ignore(*DEEPSEEK_TRAINING)
    qk_norm = QKNormConfig(norm=read_norm(fields), over="head") if fields.take("use_qk_norm") else None
    attention = {"qkv_bias": fields.take("attention_bias", False), "qk_norm": qk_norm}
    config = read_llama(fields, context_length, fraction=0.5, attention=attention)
    experts = read_with_shared(fields, config, read_biased_router(fields), num_experts=128)
    return with_experts(config, experts, after_dense(fields, config))


FAMILY = Family(
    summary="GLM-4.5 and GLM-4.6: partial rotary, experts chosen with learned biases, a shared network",
    read_config=read_config,
    tensors=TENSORS | QK_NORM_TENSORS | deepseek_tensors(),
    defaults={
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "use_qk_norm": False, "moe_intermediate_size": 1408,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    },
    # Layers behind the last one of either size predict further tokens.
    ignored_tensors=(behind(46, 92),),
    mtp=BEHIND_LAST,
)  # fmt: skip
