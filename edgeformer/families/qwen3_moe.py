"""Qwen3 with experts: Qwen3-30B-A3B and its relatives.

Qwen3 whose layers have experts, but for those in `mlp_only_layers` and between the steps of `decoder_sparse_step`.
Source: transformers/models/qwen3_moe/modeling_qwen3_moe.py.
"""

from edgeformer.config import DecoderConfig, QKNormConfig, RouterConfig
from edgeformer.families._experts import expert_tensors, read_experts, with_experts
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import SLIDING, read_used_window, with_windows
from edgeformer.families.llama import QK_NORM_TENSORS, TENSORS, read_attention_bias, read_llama, read_norm


def sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Read which layers of a Qwen model have experts."""
    dense, step = fields.take("mlp_only_layers", []), fields.take("decoder_sparse_step")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Qwen3-MoE config.json."""
    fields.ignore("max_window_layers")  # a window applies to all layers
    qk_norm = QKNormConfig(norm=read_norm(fields), over="head")
    config = read_llama(fields, context_length, attention={"qk_norm": qk_norm, **read_attention_bias(fields)})
    window = read_used_window(fields)
    config = config if window is None else with_windows(config, [SLIDING] * len(config.blocks), window)
    router = RouterConfig(scoring="softmax", normalized=fields.take("norm_topk_prob"))
    size = fields.take("moe_intermediate_size")
    dense = config.blocks[0].feed_forward
    experts = read_experts(fields, dense, router, num_experts=128, intermediate_size=size)
    return with_experts(config, experts, sparse_layers(fields, len(config.blocks)))


FAMILY = Family(
    summary="Qwen3 with experts: some layers dense, norms of queries and keys",
    read_config=read_config,
    tensors=TENSORS | QK_NORM_TENSORS | expert_tensors("model.layers.*.mlp"),
    defaults={
        "num_key_value_heads": 4, "use_sliding_window": False, "sliding_window": 4096, "norm_topk_prob": False,
        "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
    },
)  # fmt: skip
