"""LFM2 with experts: LFM2-8B-A1B and its relatives.

LFM2 whose layers have experts, but for the first `num_dense_layers`. Source:
transformers/models/lfm2_moe/modeling_lfm2_moe.py.
"""

from edgeformer.config import DecoderConfig, RouterConfig
from edgeformer.families._experts import expert_tensors, read_experts, with_experts
from edgeformer.families._family import Family, Fields
from edgeformer.families.lfm2 import TENSORS, read_lfm2

MODULE = "model.layers.*.feed_forward"


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an LFM2-MoE config.json."""
    fields.take("layer_types")  # it has no default
    config = read_lfm2(fields, context_length, fields.take("intermediate_size"))
    normalized = fields.take("norm_topk_prob")
    router = RouterConfig(
        scoring="sigmoid",
        normalized=normalized,
        choice_bias=fields.take("use_expert_bias"),
        sum_epsilon=1e-6 if normalized else 0.0,
        scale=fields.take("routed_scaling_factor"),
    )
    size, dense = fields.take("moe_intermediate_size"), fields.take("num_dense_layers")
    experts = read_experts(fields, config.blocks[0].feed_forward, router, num_experts=32, intermediate_size=size)
    return with_experts(config, experts, [layer >= dense for layer in range(len(config.blocks))])


FAMILY = Family(
    summary="LFM2 with experts: short convolutions, attention in some layers",
    read_config=read_config,
    tensors={
        **TENSORS,
        **expert_tensors(MODULE, ("w1", "w3", "w2")),
        "blocks.*.feed_forward.router.choice_bias": f"{MODULE}.expert_bias",
    },
    defaults={
        "norm_eps": 1e-5, "conv_L_cache": 3, "conv_bias": False, "num_key_value_heads": 8, "tie_word_embeddings": True,
        "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts_per_tok": 4,
        "use_expert_bias": True, "routed_scaling_factor": 1.0, "norm_topk_prob": True, "rope_theta": 1000000.0,
    },
)  # fmt: skip
