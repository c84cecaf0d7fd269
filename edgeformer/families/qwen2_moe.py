"""Qwen 1.5 and Qwen2 with experts.

Qwen2 whose layers have experts and a shared network with a gate, but for those in `mlp_only_layers` and between the
steps of `decoder_sparse_step`. Source: transformers/models/qwen2_moe/modeling_qwen2_moe.py.
"""

from dataclasses import replace

from edgeformer.config import DecoderConfig, ExpertsConfig, FeedForwardConfig, RouterConfig
from edgeformer.families._experts import expert_tensors, read_experts, shared_tensors, with_experts
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, SLIDING, read_layer_types, read_used_window, with_windows
from edgeformer.families.llama import TENSORS, read_llama
from edgeformer.families.qwen3_moe import sparse_layers

MODULE = "model.layers.*.mlp"
GATED_EXPERT_TENSORS = {
    **expert_tensors(MODULE),
    **shared_tensors(f"{MODULE}.shared_expert"),
    "blocks.*.feed_forward.shared_gate": f"{MODULE}.shared_expert_gate",
}


def read_windows(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """Return the config with windows: without layer_types, every second layer before max_window_layers has one."""
    last, window = fields.take("max_window_layers"), read_used_window(fields)
    layers = range(len(config.blocks))
    local = [window is not None and layer < last and layer % 2 == 0 for layer in layers]
    return with_windows(config, read_layer_types(fields, [SLIDING if each else FULL for each in local]), window)


def read_gated_experts(fields: Fields, config: DecoderConfig, *, num_experts: int) -> ExpertsConfig:
    """Read experts beside a network that every token uses, behind a gate.

    num_experts: the number of experts where config.json has none.
    """
    dense = config.blocks[0].feed_forward
    assert isinstance(dense, FeedForwardConfig)
    return read_experts(
        fields,
        dense,
        RouterConfig(scoring="softmax", normalized=fields.take("norm_topk_prob")),
        num_experts=num_experts,
        intermediate_size=fields.take("moe_intermediate_size"),
        shared=replace(dense, intermediate_size=fields.take("shared_expert_intermediate_size")),
        shared_gate=True,
    )


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Qwen2-MoE config.json."""
    config = read_windows(fields, read_llama(fields, context_length, attention={"qkv_bias": fields.take("qkv_bias")}))
    experts = read_gated_experts(fields, config, num_experts=60)
    return with_experts(config, experts, sparse_layers(fields, len(config.blocks)))


FAMILY = Family(
    summary="Qwen 1.5 and Qwen2 with experts: a shared network with a gate, some layers dense",
    read_config=read_config,
    tensors=TENSORS | GATED_EXPERT_TENSORS,
    defaults={
        "num_key_value_heads": 16, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
        "decoder_sparse_step": 1, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4, "norm_topk_prob": False, "qkv_bias": True,
    },
)  # fmt: skip
