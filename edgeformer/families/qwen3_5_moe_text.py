"""The text model of Qwen3.5 with experts.

Qwen3.5 with experts in every layer. Source: transformers/models/qwen3_5_moe/modeling_qwen3_5_moe.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._delta_net import DEFAULTS, DELTA_TENSORS, GATED_TENSORS, read_gated
from edgeformer.families._experts import with_experts
from edgeformer.families._family import Family, Fields
from edgeformer.families._mtp import MTP, PREDICTION
from edgeformer.families.llama import TENSORS
from edgeformer.families.qwen2_moe import GATED_EXPERT_TENSORS, read_gated_experts


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read the config.json of the text model of Qwen3.5 with experts."""
    # Fields of Qwen3-Next, where some layers are dense. Here all layers have experts, whose weights always sum to one.
    fields.ignore("mlp_only_layers", "decoder_sparse_step")
    fields.choice("norm_topk_prob", {True: True}, True)
    config = read_gated(fields, context_length, {"intermediate_size": fields.take("moe_intermediate_size")})
    return with_experts(config, read_gated_experts(fields, config, num_experts=256))


FAMILY = Family(
    summary="Qwen3.5 with experts, text: Gated DeltaNet, and attention with a gated output in some layers",
    read_config=read_config,
    tensors=TENSORS | GATED_TENSORS | DELTA_TENSORS | GATED_EXPERT_TENSORS,
    defaults=DEFAULTS | {
        "num_key_value_heads": 2, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
    ignored_tensors=(PREDICTION,),
    mtp=MTP,
)  # fmt: skip
