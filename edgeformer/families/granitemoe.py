"""Granite 3 with experts, and PowerMoE.

Granite with experts in every layer, stored in fused tensors. Source:
transformers/models/granitemoe/modeling_granitemoe.py.
"""

from edgeformer.config import DecoderConfig, FeedForwardConfig, RouterConfig
from edgeformer.families import granite
from edgeformer.families._experts import Tables, read_experts, with_experts
from edgeformer.families._family import Family, Fields, Packed
from edgeformer.families.llama import TENSORS

MODULE = "model.layers.*.block_sparse_moe"
FUSED = f"{MODULE}.input_linear.weight|{MODULE}.experts.gate_up_proj"

EXPERT_TENSORS: Tables = {
    **TENSORS,
    "blocks.*.feed_forward.router.projection": f"{MODULE}.router.layer|{MODULE}.router",
    "blocks.*.feed_forward.experts.gate.weight": Packed(FUSED, 0, "experts"),
    "blocks.*.feed_forward.experts.up.weight": Packed(FUSED, 1, "experts"),
    "blocks.*.feed_forward.experts.down.weight": f"{MODULE}.output_linear.weight|{MODULE}.experts.down_proj",
}


def read_granite_experts(
    fields: Fields, config: DecoderConfig, shared: FeedForwardConfig | None = None
) -> DecoderConfig:
    """Return a dense Granite with experts in every layer; shared: the network that all tokens use."""
    router = RouterConfig(scoring="softmax", normalized=True)
    experts = read_experts(fields, config.blocks[0].feed_forward, router, num_experts=8, shared=shared)
    return with_experts(config, experts)


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Granite-MoE config.json."""
    fields.choice("mlp_bias", {False: False}, False)
    return read_granite_experts(fields, granite.read_config(fields, context_length))


FAMILY = Family(
    summary="Granite 3 with experts: multipliers of embeddings, scores, branches and logits",
    read_config=read_config,
    tensors=EXPERT_TENSORS,
    defaults={"num_experts_per_tok": 2},
)
