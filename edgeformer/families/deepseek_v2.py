"""DeepSeek-V2, DeepSeek-V2-Lite and DeepSeek-Coder-V2.

Llama with latent attention, and with experts and a shared network behind the first layers. Source:
transformers/models/deepseek_v2/modeling_deepseek_v2.py.
"""

from edgeformer.config import DecoderConfig, RouterConfig
from edgeformer.families._experts import (
    DEEPSEEK_TRAINING,
    after_dense,
    expert_tensors,
    read_with_shared,
    shared_tensors,
    with_experts,
)
from edgeformer.families._family import Family, Fields
from edgeformer.families._latent import LATENT_TENSORS, read_latent
from edgeformer.families.llama import read_llama

MODULE = "model.layers.*.mlp"


def read_router(fields: Fields) -> RouterConfig:
    """Read the router, whose weights transformers does not normalize."""
    fields.choice("scoring_func", {"softmax": None}, "softmax")
    fields.choice("norm_topk_prob", {False: None}, False)
    grouped = fields.choice("topk_method", {"greedy": False, "group_limited_greedy": True})
    groups, chosen = fields.take("n_group", 1), fields.take("topk_group", 1)
    return RouterConfig(
        scoring="softmax",
        normalized=False,
        groups=groups if grouped else 1,
        groups_per_token=chosen if grouped else 1,
        scale=fields.take("routed_scaling_factor"),
    )


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a DeepSeek-V2 config.json."""
    fields.ignore(*DEEPSEEK_TRAINING)
    latent = read_latent(fields, context_length, interleaved=True)
    bias = fields.take("mlp_bias", False)
    config = read_llama(fields, context_length, attention=latent, feed_forward={"bias": bias})
    experts = read_with_shared(fields, config, read_router(fields), num_experts=64)
    return with_experts(config, experts, after_dense(fields, config))


FAMILY = Family(
    summary="DeepSeek-V2 and V2-Lite: latent attention, experts in groups, a shared network",
    read_config=read_config,
    tensors=LATENT_TENSORS | expert_tensors(MODULE) | shared_tensors(f"{MODULE}.shared_experts"),
    defaults={
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "moe_intermediate_size": 1407, "n_shared_experts": 2, "first_k_dense_replace": 0, "topk_method": "greedy",
        "routed_scaling_factor": 1.0,
    },
    computed_tensors={r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "rotary_frequencies"},
)  # fmt: skip
