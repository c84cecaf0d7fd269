"""GLM-4.7-Flash.

DeepSeek-V3 whose dense layers are those of `mlp_layer_types`. Source:
transformers/models/glm4_moe_lite/modeling_glm4_moe_lite.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.errors import ConfigError
from edgeformer.families._experts import (
    DEEPSEEK_TRAINING,
    deepseek_tensors,
    read_biased_router,
    read_with_shared,
    with_experts,
)
from edgeformer.families._family import Family, Fields
from edgeformer.families._latent import LATENT_TENSORS, read_latent
from edgeformer.families._layers import of_each_layer
from edgeformer.families._mtp import BEHIND_LAST, behind
from edgeformer.families.llama import read_llama

KINDS = {"dense": False, "sparse": True}
"""Whether layers of a type have experts, by transformers' names of the types."""


def read_sparse(fields: Fields, layers: int) -> list[bool]:
    """Read which layers have experts: by default all but the first."""
    types = fields.take("mlp_layer_types", ["dense"] + ["sparse"] * (layers - 1))
    for unknown in sorted(set(types) - KINDS.keys()):
        raise ConfigError(f"config.json's mlp_layer_types have {unknown!r}; supported here: {', '.join(KINDS)}.")
    return [KINDS[kind] for kind in of_each_layer("mlp_layer_types", types, layers)]


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GLM-4-MoE-Lite config.json."""
    fields.ignore(*DEEPSEEK_TRAINING)
    latent = read_latent(fields, context_length, interleaved=fields.take("rope_interleave"))
    config = read_llama(fields, context_length, attention=latent)
    experts = read_with_shared(fields, config, read_biased_router(fields), num_experts=64)
    return with_experts(config, experts, read_sparse(fields, len(config.blocks)))


FAMILY = Family(
    summary="GLM-4.7-Flash: latent attention, experts chosen with learned biases, a shared network",
    read_config=read_config,
    tensors=LATENT_TENSORS | deepseek_tensors(),
    defaults={
        "num_key_value_heads": 20, "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "q_lora_rank": 768,
        "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "moe_intermediate_size": 1536,
        "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.8, "rope_interleave": True,
    },
    ignored_tensors=(behind(47),),
    mtp=BEHIND_LAST,
)  # fmt: skip
