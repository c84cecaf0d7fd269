"""DeepSeek-V3, DeepSeek-R1, Kimi K2's and Moonlight's architecture.

Llama with latent attention, and with experts and a shared network behind the first layers. Source:
transformers/models/deepseek_v3/modeling_deepseek_v3.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._experts import (
    DEEPSEEK_TRAINING,
    after_dense,
    deepseek_tensors,
    read_biased_router,
    read_with_shared,
    with_experts,
)
from edgeformer.families._family import Family, Fields
from edgeformer.families._latent import LATENT_TENSORS, read_latent
from edgeformer.families._mtp import BEHIND_LAST, behind
from edgeformer.families.llama import read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a DeepSeek-V3 config.json."""
    fields.ignore(*DEEPSEEK_TRAINING)
    latent = read_latent(fields, context_length, interleaved=fields.take("rope_interleave"))
    config = read_llama(fields, context_length, attention=latent)
    experts = read_with_shared(fields, config, read_biased_router(fields), num_experts=256)
    return with_experts(config, experts, after_dense(fields, config))


FAMILY = Family(
    summary="DeepSeek-V3 and Moonlight: latent attention, experts chosen with learned biases, a shared network",
    read_config=read_config,
    tensors=LATENT_TENSORS | deepseek_tensors(),
    defaults={
        "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_intermediate_size": 2048, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "rope_interleave": True,
    },
    # The layer behind the last one predicts the token after the next; transformers leaves it out by this name, too.
    ignored_tensors=(behind(61),),
    mtp=BEHIND_LAST,
    computed_tensors={r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "rotary_frequencies"},
)  # fmt: skip
