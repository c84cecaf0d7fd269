"""dots.llm1.

Qwen3 with the experts of DeepSeek-V3, and windows from layer max_window_layers on. Source:
transformers/models/dots1/modeling_dots1.py.
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
from edgeformer.families._layers import FULL, SLIDING, read_layer_types, with_windows
from edgeformer.families.llama import QK_NORM_TENSORS, TENSORS, read_attention_bias, read_llama, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a dots.llm1 config.json."""
    fields.ignore(*DEEPSEEK_TRAINING)
    qk_norm = QKNormConfig(norm=read_norm(fields), over="head")
    config = read_llama(fields, context_length, attention={"qk_norm": qk_norm, **read_attention_bias(fields)})
    first, window, layers = fields.take("max_window_layers"), fields.take("sliding_window", None), len(config.blocks)
    otherwise = [SLIDING if window is not None and layer >= first else FULL for layer in range(layers)]
    config = with_windows(config, read_layer_types(fields, otherwise), window)
    experts = read_with_shared(fields, config, read_biased_router(fields), num_experts=128)
    return with_experts(config, experts, after_dense(fields, config))


FAMILY = Family(
    summary="dots.llm1: norms of queries and keys, experts chosen with learned biases, a shared network",
    read_config=read_config,
    tensors=TENSORS | QK_NORM_TENSORS | deepseek_tensors(),
    defaults={
        "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 62, "moe_intermediate_size": 1408,
        "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
)  # fmt: skip
