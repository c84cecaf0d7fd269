"""The models that every family is tested with: random ones of transformers' own class, with options varied.

FAMILIES[model_type] holds `sizes`, which all models of the family share, and by name what each model adds to them. A
model may also say how it is stored (`dtype`, `shard_size`), and with which options it is exported (`export`).

The first model of a family, which is exported in fp16, too, uses all of its experts: float16 may choose another expert
than float32 where two are nearly equal.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import mimo_class
import torch

mimo_class.register()

VOCABULARY = 131


@dataclass(frozen=True)
class Row:
    """Random models of one family. stored, exported: options by model name, for saving it and for `export_model`."""

    sizes: dict[str, Any]
    models: dict[str, dict[str, Any]]
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    exported: dict[str, dict[str, Any]] = field(default_factory=dict)


SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
"""Sizes under the names that most families use."""

SIZES_MHA = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}

MAMBA_SIZES = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 4,
    "mamba_expand": 2,
}  # fmt: skip
"""Sizes of Mamba-2 layers in models that also have attention; a hidden size of 64 makes 128 channels."""

TRAINED_STEPS = [0.001, 0.1]
"""Bounds of Mamba-2's Δ in which training starts. The first model of a row is also exported in float16; random steps
are larger, and so sensitive to rounding that transformers' own float16 is 2 % off.
"""

GPT2_SIZES = {
    "vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
"""Sizes under GPT-2's names."""

LATENT_SIZES = {
    "num_key_value_heads": 4, "kv_lora_rank": 20, "q_lora_rank": 28, "qk_nope_head_dim": 11, "qk_rope_head_dim": 6,
    "v_head_dim": 13,
}  # fmt: skip
"""Sizes of latent attention."""

SLIDING, FULL = "sliding_attention", "full_attention"

GATED_SIZES = SIZES | {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 10, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}  # fmt: skip
EXPERT_SIZES = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 24,
}  # fmt: skip
WIDE_HEADS = {
    "linear_key_head_dim": 32, "linear_value_head_dim": 24, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "rms_norm_eps": 1e-2, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
"""Sizes of Qwen3-Next and Qwen3.5. A head of linear attention that returns almost zero, as at the first tokens, is
divided by its length. That amplifies rounding where heads are few and narrow: with two heads of 10, storing the weights
in float16 alone changes logits by 0.7 %. The model that is exported in float16 has wider heads, and fewer layers.
"""

FAMILIES = {
    "apertus": Row(
        sizes=SIZES,
        models={
            "xielu": {},
            "biases": {"attention_bias": True, "num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True},
            "silu": {"hidden_act": "silu", "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
            "llama3": {
                "rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "arcee": Row(
        sizes=SIZES,
        models={
            "relu2": {},
            "gated-nothing": {"hidden_act": "silu", "num_key_value_heads": 4, "tie_word_embeddings": True},
            "biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 32, "rms_norm_eps": 1e-2},
            "yarn": {
                "num_key_value_heads": 1,
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 20.0, "mscale": 1.0,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "bamba": Row(
        sizes=SIZES | MAMBA_SIZES | {"attn_layer_indices": [1]},
        models={
            "trained-steps": {"time_step_limit": TRAINED_STEPS},
            "biases": {
                "mamba_proj_bias": True, "mamba_conv_bias": False, "attention_bias": True, "mlp_bias": True,
                "mamba_d_conv": 2, "rms_norm_eps": 1e-2,
            },
            "steps": {"time_step_limit": [0.2, 0.9], "mamba_n_groups": 1, "mamba_d_state": 9},
            "widths": {
                "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "mamba_expand": 3,
                "mamba_n_heads": 8, "mamba_d_head": 18, "tie_word_embeddings": True, "attn_layer_indices": [0, 2],
            },
        },
    ),
    "biogpt": Row(
        sizes=SIZES_MHA,
        models={
            "plain": {"max_position_embeddings": 80},
            "unscaled": {"scale_embedding": False, "hidden_act": "relu"},
            "free-head": {"tie_word_embeddings": False, "num_attention_heads": 8, "layer_norm_eps": 0.1},
        },
    ),
    "bloom": Row(
        sizes={"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 3, "n_head": 4},
        models={
            "plain": {},
            "six-heads": {"hidden_size": 96, "n_head": 6},
            "one-head": {"n_head": 1, "layer_norm_epsilon": 1e-2, "pretraining_tp": 2},
            "free-head": {"tie_word_embeddings": False, "n_head": 8},
        },
        exported={name: {"context_length": 256} for name in ("plain", "six-heads", "one-head", "free-head")},
    ),
    "codegen": Row(
        sizes=GPT2_SIZES | {"rotary_dim": 8},
        models={
            "plain": {},
            "whole-heads": {"rotary_dim": 8, "n_head": 8, "layer_norm_epsilon": 1e-2},
            "inner": {"n_inner": 96, "activation_function": "relu", "n_embd": 96, "n_head": 12, "rotary_dim": 4},
        },
    ),
    "cohere": Row(
        sizes=SIZES,
        models={
            "tied": {},
            "qk-norm": {"use_qk_norm": True, "layer_norm_eps": 1e-2},
            "untied": {"tie_word_embeddings": False, "logit_scale": 0.25, "num_key_value_heads": 4},
            "biases": {"attention_bias": True, "hidden_act": "gelu", "num_key_value_heads": 1},
            "wide-heads": {"head_dim": 32, "use_qk_norm": True},
            "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 8000000.0, "factor": 4.0}},
        },
    ),
    "cohere2": Row(
        sizes=SIZES | {"num_hidden_layers": 4, "sliding_window": 8},
        models={
            "three-of-four": {},
            "old-pattern": {"sliding_window_pattern": 2, "layer_norm_eps": 1e-2, "num_key_value_heads": 4},
            "layer-types": {
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
                "sliding_window": 5, "logit_scale": 0.25, "tie_word_embeddings": False,
            },
            "window-of-context": {"sliding_window": 256, "hidden_act": "gelu"},
            "no-positions": {"layer_types": ["full_attention"] * 4},
            "biases": {
                "attention_bias": True, "num_key_value_heads": 1,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0},
            },
        },
    ),
    "cwm": Row(
        sizes=SIZES | {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 8},
        models={
            "three-of-four": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
            "llama3": {
                "num_key_value_heads": 4, "sliding_window": 5, "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
            "layer-types": {
                "layer_types": ["sliding_attention", "full_attention", "full_attention"], "num_hidden_layers": 3,
                "mlp_bias": True, "head_dim": 32, "rms_norm_eps": 1e-2, "num_key_value_heads": 1,
            },
        },
    ),
    "deepseek_v2": Row(
        sizes=SIZES
        | LATENT_SIZES
        | {
            "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 25, "n_shared_experts": 2,
            "first_k_dense_replace": 1, "qk_nope_head_dim": 10,
        },
        models={
            "all-experts": {"num_experts_per_tok": 6},
            "lite": {
                "q_lora_rank": None, "routed_scaling_factor": 1.5,
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 0.707, "mscale_all_dim": 0.707,
                    "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
                },
            },
            "groups": {
                "topk_method": "group_limited_greedy", "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
                "num_experts_per_tok": 3, "routed_scaling_factor": 16.0, "first_k_dense_replace": 0,
            },
            "biases": {
                "attention_bias": True, "mlp_bias": True, "n_shared_experts": 1, "hidden_act": "gelu",
                "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
            },
        },
    ),
    "deepseek_v3": Row(
        sizes=SIZES
        | LATENT_SIZES
        | {
            "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 25, "first_k_dense_replace": 1,
            "n_group": 4, "topk_group": 2,
        },
        models={
            "all-experts": {"num_experts_per_tok": 8, "topk_group": 4, "routed_scaling_factor": 1.0},
            "groups": {},
            "yarn": {
                "n_group": 1, "topk_group": 1, "rope_interleave": False, "n_routed_experts": 5,
                "num_experts_per_tok": 1,
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
                },
            },
            "not-normalized": {
                "norm_topk_prob": False, "q_lora_rank": None, "attention_bias": True, "n_shared_experts": 2,
                "first_k_dense_replace": 0, "num_experts_per_tok": 2,
            },
        },
    ),
    "dots1": Row(
        sizes=SIZES
        | {
            "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 25, "n_shared_experts": 1,
            "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        },
        models={
            "all-experts": {"num_experts_per_tok": 6},
            "windows": {"sliding_window": 9, "max_window_layers": 1, "first_k_dense_replace": 2, "head_dim": 32},
            "groups": {
                "n_group": 3, "topk_group": 2, "n_shared_experts": 2, "norm_topk_prob": False, "attention_bias": True,
                "routed_scaling_factor": 2.5,
            },
            "layer-types": {
                "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 5,
                "num_key_value_heads": 1, "tie_word_embeddings": True,
            },
        },
    ),
    "ernie4_5": Row(
        sizes=SIZES | {"head_dim": 16},
        models={
            "tied": {},
            "biases": {"use_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 1},
            "wide-heads": {"head_dim": 32, "rms_norm_eps": 1e-2, "hidden_act": "gelu"},
            "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0}},
        },
    ),
    "ernie4_5_moe": Row(
        sizes=SIZES | {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 25},
        models={
            "all-experts": {"moe_k": 6, "moe_layer_start_index": 0},
            "biases": {
                "use_bias": True, "moe_num_shared_experts": 0, "moe_num_experts": 5, "moe_k": 3, "moe_norm_min": 1.5,
                "tie_word_embeddings": False, "num_key_value_heads": 4,
            },
            "intervals": {
                "num_hidden_layers": 5, "moe_layer_interval": 2, "moe_layer_end_index": 3, "moe_num_shared_experts": 1,
                "hidden_act": "gelu", "rms_norm_eps": 1e-3,
            },
        },
    ),
    "exaone4": Row(
        sizes=SIZES | {"num_hidden_layers": 4, "sliding_window": 8},
        models={
            "three-of-four": {},
            "no-windows": {
                "sliding_window": None, "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
            "every-second": {"sliding_window_pattern": 2, "num_key_value_heads": 1, "head_dim": 32},
            "layer-types": {
                "layer_types": ["full_attention", "full_attention", "sliding_attention", "sliding_attention"],
                "sliding_window_pattern": "GGLL", "sliding_window": 5, "rms_norm_eps": 1e-2, "hidden_act": "gelu",
            },
            "window-of-context": {"sliding_window": 256, "num_key_value_heads": 4},
        },
    ),
    "falcon": Row(
        sizes={
            "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
            "max_position_embeddings": 256,
        },
        models={
            "7b": {},
            "40b": {"new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False},
            "one-norm": {
                "new_decoder_architecture": True, "num_kv_heads": 1, "num_ln_in_parallel_attn": 1, "bias": True,
            },
            "multi-head": {"multi_query": False, "bias": True},
            "serial": {"parallel_attn": False, "ffn_hidden_size": 96, "activation": "gelu_new"},
            "serial-multi-head": {"parallel_attn": False, "multi_query": False, "layer_norm_epsilon": 1e-2},
            "linear": {
                "bias": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
            },
        },
    ),
    "falcon_h1": Row(
        sizes=SIZES | MAMBA_SIZES | {"mamba_d_ssm": 128},
        models={
            "trained-steps": {"time_step_limit": TRAINED_STEPS},
            "plain": {},
            "factors": {
                "key_multiplier": 0.5, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.7,
                "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
                "mlp_multipliers": [0.8, 1.4], "embedding_multiplier": 2.0, "lm_head_multiplier": 0.25,
            },
            "norm": {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
            "norm-first": {
                "mamba_rms_norm": True, "mamba_n_groups": 4, "projectors_bias": True, "attention_bias": True,
                "mlp_bias": True, "mamba_proj_bias": True, "num_key_value_heads": 1, "mamba_d_conv": 3,
            },
            "narrow": {"mamba_d_ssm": 96, "mamba_n_heads": 4, "mamba_d_head": 24, "mamba_conv_bias": False},
        },
    ),
    "flex_olmo": Row(
        sizes=SIZES | {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 37, "pad_token_id": 0},
        models={
            "all-experts": {"num_experts_per_tok": 6},
            "normalized": {"norm_topk_prob": True, "num_key_value_heads": 4, "hidden_act": "relu"},
            "biases": {"attention_bias": True, "num_experts": 5, "num_experts_per_tok": 1, "rms_norm_eps": 1e-3},
        },
    ),
    "gemma": Row(
        sizes=SIZES | {"head_dim": 16},
        models={
            "gqa": {},
            "mqa": {"num_key_value_heads": 1, "head_dim": 32},
            "untied": {"tie_word_embeddings": False, "rms_norm_eps": 1e-2},
            "biases": {"attention_bias": True, "hidden_size": 80},
            "legacy-gelu": {"hidden_act": "gelu"},
            "relu": {"hidden_act": "relu"},
            "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        },
    ),
    "gemma2": Row(
        sizes=SIZES | {"head_dim": 16, "sliding_window": 8},
        models={
            "caps": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
            "no-caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
            "scale": {"query_pre_attn_scalar": 24, "head_dim": 32, "num_key_value_heads": 1},
            "layer-types": {
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                "num_hidden_layers": 4, "sliding_window": 5,
            },
            "window-of-context": {"sliding_window": 256, "tie_word_embeddings": False},
            "biases": {"attention_bias": True, "hidden_activation": "silu", "rms_norm_eps": 1e-2},
        },
    ),
    "gemma3n_text": Row(
        sizes=SIZES
        | {
            "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 5, "num_kv_shared_layers": 2, "laurel_rank": 12,
            "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": VOCABULARY, "altup_num_inputs": 4,
            "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0, 0.95], "layer_types": [SLIDING, FULL] * 2 + [SLIDING],
        },
        models={
            "two": {
                "num_hidden_layers": 2, "num_kv_shared_layers": 1, "layer_types": [SLIDING] * 2,
                "activation_sparsity_pattern": [0.9, 0.0],
            },
            "three": {
                "num_hidden_layers": 3, "num_kv_shared_layers": 1, "layer_types": [SLIDING, FULL, SLIDING],
                "activation_sparsity_pattern": [0.9, 0.0, 0.5],
            },
            "five": {},
            "rows": {"vocab_size_per_layer_input": 97, "altup_active_idx": 1, "altup_num_inputs": 3},
            "unshared": {
                "num_kv_shared_layers": 0, "altup_correct_scale": False, "num_hidden_layers": 2, "altup_num_inputs": 2,
                "layer_types": [SLIDING, FULL], "activation_sparsity_pattern": None, "final_logit_softcapping": 1.5,
            },
            "odd": {
                "head_dim": 20, "hidden_size_per_layer_input": 7, "laurel_rank": 5, "num_key_value_heads": 1,
                "intermediate_size": [96, 33, 50, 96, 17], "num_kv_shared_layers": 3, "rms_norm_eps": 1e-3,
            },
            "dense": {
                "attention_bias": True, "tie_word_embeddings": False, "activation_sparsity_pattern": [0.0] * 5,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 30000.0, "factor": 4.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                },
            },
        },
    ),
    "gemma3_text": Row(
        sizes=SIZES | {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 6},
        models={
            "five-of-six": {},
            "old-pattern": {"sliding_window_pattern": 2, "num_hidden_layers": 3, "num_key_value_heads": 1},
            "layer-types": {
                "layer_types": ["full_attention", "sliding_attention", "full_attention"], "num_hidden_layers": 3,
                "query_pre_attn_scalar": 24, "head_dim": 32, "sliding_window": 5,
            },
            "linear": {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                },
            },
            "cap": {"final_logit_softcapping": 1.5, "tie_word_embeddings": False, "sliding_window_pattern": 3},
            "biases": {"attention_bias": True, "rms_norm_eps": 1e-2, "sliding_window_pattern": 3},
        },
    ),
    "gemma4_text": Row(
        sizes=SIZES
        | {
            "head_dim": 16, "global_head_dim": 32, "sliding_window": 8, "num_hidden_layers": 6, "pad_token_id": 0,
            "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 2,
            "layer_types": [SLIDING, FULL] * 3,
        },
        models={
            "four": {
                "num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2, "use_double_wide_mlp": True,
            },
            "keys-as-values": {
                "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 1.5,
                "global_head_dim": 24, "rms_norm_eps": 1e-3,
            },
            "unshared": {
                "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "layer_types": None,
                "attention_k_eq_v": True, "num_hidden_layers": 3, "tie_word_embeddings": False,
                "num_global_key_value_heads": 4,
            },
            "experts": {
                "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 20,
                "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "num_hidden_layers": 2,
                "layer_types": [SLIDING, FULL],
            },
            "odd": {
                "attention_bias": True, "head_dim": 20, "global_head_dim": 12, "hidden_size_per_layer_input": 7,
                "num_key_value_heads": 1, "use_bidirectional_attention": "vision",
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 30000.0},
                    "sliding_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
                },
            },
        },
    ),
    "glm": Row(
        sizes=SIZES | {"head_dim": 16, "pad_token_id": 0},
        models={
            "biases": {},
            "no-biases": {"attention_bias": False, "num_key_value_heads": 4, "tie_word_embeddings": True},
            "whole-heads": {
                "head_dim": 32, "rms_norm_eps": 1e-2, "hidden_act": "gelu",
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
            },
            "linear": {
                "num_key_value_heads": 1,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            },
        },
    ),
    "glm4": Row(
        sizes=SIZES | {"head_dim": 16, "pad_token_id": 0},
        models={
            "biases": {},
            "no-biases": {"attention_bias": False, "num_key_value_heads": 4, "tie_word_embeddings": True},
            "quarter": {
                "head_dim": 32, "rms_norm_eps": 1e-2, "num_key_value_heads": 1,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
            },
        },
    ),
    "glm4_moe": Row(
        sizes=SIZES
        | {
            "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 25, "first_k_dense_replace": 1,
            "head_dim": 16,
        },
        models={
            "all-experts": {"num_experts_per_tok": 6},
            "normed-heads": {"use_qk_norm": True, "attention_bias": True, "head_dim": 32, "n_shared_experts": 2},
            "groups": {
                "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": False,
                "first_k_dense_replace": 0,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
            },
        },
    ),
    "glm4_moe_lite": Row(
        sizes=SIZES
        | LATENT_SIZES
        | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 25, "v_head_dim": 17},
        models={
            "all-experts": {"num_experts_per_tok": 6},
            "layer-types": {
                "mlp_layer_types": ["sparse", "dense", "sparse"], "attention_bias": True, "num_experts_per_tok": 1,
            },
            "groups": {
                "n_group": 2, "topk_group": 1, "rope_interleave": False, "q_lora_rank": None, "n_shared_experts": 2,
                "norm_topk_prob": False, "tie_word_embeddings": True,
            },
        },
    ),
    "gpt2": Row(
        sizes=GPT2_SIZES,
        models={
            "plain": {},
            "inner": {"n_inner": 96, "activation_function": "relu", "layer_norm_epsilon": 1e-2},
            "by-layer": {"scale_attn_by_inverse_layer_idx": True, "n_head": 8},
            "unscaled": {"scale_attn_weights": False, "reorder_and_upcast_attn": True, "tie_word_embeddings": False},
        },
    ),
    "gpt_bigcode": Row(
        sizes=GPT2_SIZES,
        models={
            "mqa": {},
            "mha": {"multi_query": False, "n_inner": 96},
            "unscaled": {"scale_attn_weights": False, "tie_word_embeddings": False, "activation_function": "gelu"},
        },
    ),
    "gpt_neo": Row(
        sizes={
            "vocab_size": VOCABULARY, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "window_size": 8,
            "max_position_embeddings": 256, "attention_types": [[["global", "local"], 1]],
        },
        models={
            "every-second": {},
            "other-runs": {
                "attention_types": [[["local"], 2], [["global"], 1]], "num_layers": 3, "intermediate_size": 96,
                "activation_function": "relu", "layer_norm_epsilon": 1e-2,
            },
            "free-head": {"tie_word_embeddings": False, "num_heads": 8, "window_size": 256},
        },
    ),
    "gpt_neox": Row(
        sizes=SIZES_MHA,
        models={
            "parallel": {},
            "serial": {"use_parallel_residual": False, "hidden_act": "gelu_fast", "layer_norm_eps": 1e-2},
            "whole-heads": {
                "attention_bias": False, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0},
            },
            "tied": {
                "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "linear", "rope_theta": 500.0, "partial_rotary_factor": 0.5, "factor": 2.0,
                },
            },
        },
    ),
    "gpt_oss": Row(
        sizes=SIZES | {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16, "intermediate_size": 37},
        models={
            "all-experts": {"num_experts_per_tok": 5, "sliding_window": 9, "swiglu_limit": 1.5},
            "plain-rotary": {
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "attention_bias": False,
                "sliding_window": 300, "swiglu_alpha": 1.0, "num_key_value_heads": 1, "tie_word_embeddings": True,
            },
            "layer-types": {
                "layer_types": ["full_attention", "full_attention", "sliding_attention"], "sliding_window": 5,
                "head_dim": 32, "num_local_experts": 7, "num_experts_per_tok": 3, "num_key_value_heads": 4,
                "swiglu_limit": 0.5,
            },
        },
    ),
    "gptj": Row(
        sizes=GPT2_SIZES | {"rotary_dim": 8},
        models={
            "plain": {},
            "whole-heads": {"rotary_dim": 16, "layer_norm_epsilon": 1e-2},
            "inner": {"n_inner": 96, "activation_function": "relu", "n_head": 2, "rotary_dim": 12},
        },
    ),
    "granite": Row(
        sizes=SIZES
        | {
            "embedding_multiplier": 12.0, "attention_multiplier": 0.0625, "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
        },
        models={
            "multipliers": {"tie_word_embeddings": True},
            "others": {
                "embedding_multiplier": 3, "attention_multiplier": 0.4, "residual_multiplier": 0.7,
                "logits_scaling": 13.0, "num_key_value_heads": 4,
            },
            "none": {
                "embedding_multiplier": 1.0, "attention_multiplier": 0.25, "residual_multiplier": 1.0,
                "logits_scaling": 1.0,
            },
            "biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2, "hidden_act": "gelu"},
            "wide-heads": {"head_dim": 32, "num_key_value_heads": 1},
            "yarn": {
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "granite_swa": Row(
        sizes=SIZES
        | {
            "num_hidden_layers": 5, "sliding_window": 8, "attention_multiplier": 0.25, "residual_multiplier": 0.5,
            "embedding_multiplier": 3.0, "logits_scaling": 2.0,
        },
        models={
            "three-of-four": {},
            "bases": {"layer_rope_theta": [0, 1000, 20000.0, 1000, 0], "num_key_value_heads": 1},
            "layer-types": {
                "layer_types": ["sliding_attention", "full_attention", "full_attention"], "num_hidden_layers": 3,
                "sliding_window": 5, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False,
                "rms_norm_eps": 1e-2,
            },
        },
    ),
    "granitemoe": Row(
        sizes=SIZES | {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 37},
        models={
            "all-experts": {"num_experts_per_tok": 6, "attention_multiplier": 0.2},
            "multipliers": {
                "embedding_multiplier": 12.0, "logits_scaling": 6.0, "residual_multiplier": 0.22,
                "attention_multiplier": 0.02,
            },
            "biases": {
                "attention_bias": True, "num_local_experts": 5, "num_experts_per_tok": 3, "hidden_act": "gelu",
                "tie_word_embeddings": True, "num_key_value_heads": 1,
            },
        },
    ),
    "granitemoehybrid": Row(
        sizes=SIZES | MAMBA_SIZES | {
            "shared_intermediate_size": 41, "intermediate_size": 37, "num_local_experts": 0, "num_experts_per_tok": 0,
            "layer_types": ["mamba", "attention", "mamba"], "rms_norm_eps": 1e-5,
        },
        models={
            "trained-steps": {
                "time_step_limit": TRAINED_STEPS, "embedding_multiplier": 12.0, "logits_scaling": 6.0,
                "residual_multiplier": 0.22, "attention_multiplier": 0.1, "position_embedding_type": "nope",
                "tie_word_embeddings": True,
            },
            "experts": {
                "num_local_experts": 7, "num_experts_per_tok": 3, "attention_multiplier": 0.2, "mamba_n_groups": 1,
                "position_embedding_type": "rope", "mamba_d_state": 9, "time_step_limit": [0.2, 0.9],
            },
            "attention-first": {
                "num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 24,
                "layer_types": ["attention", "mamba", "mamba"], "residual_multiplier": 0.5,
                "attention_multiplier": 0.2, "time_step_limit": TRAINED_STEPS,
            },
            "attention": {
                "layer_types": ["full_attention"] * 3, "position_embedding_type": "rope", "attention_bias": True,
                "embedding_multiplier": 3.0, "logits_scaling": 4.0, "num_key_value_heads": 1,
            },
            "biases": {
                "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "mamba_expand": 3,
                "mamba_d_head": 18, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 2,
                "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            },
        },
    ),
    "granitemoeshared": Row(
        sizes=SIZES | {"num_local_experts": 7, "num_experts_per_tok": 2, "shared_intermediate_size": 41},
        models={
            "all-experts": {"num_experts_per_tok": 7, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
            "no-shared-network": {"shared_intermediate_size": 0, "attention_bias": True, "num_key_value_heads": 4},
            "relu": {
                "hidden_act": "relu", "num_experts_per_tok": 3, "embedding_multiplier": 3.0, "logits_scaling": 4.0,
                "tie_word_embeddings": True,
            },
        },
    ),
    "helium": Row(
        sizes=SIZES | {"head_dim": 16, "pad_token_id": 0},
        models={
            "plain": {},
            "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
            "tied": {"tie_word_embeddings": True, "hidden_act": "gelu", "num_key_value_heads": 4},
            "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 4.0}},
        },
    ),
    "hunyuan_v1_dense": Row(
        sizes=SIZES | {"head_dim": 16},
        models={
            "alpha": {
                "rope_parameters": {
                    "rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0, "beta_fast": 32,
                    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
                },
            },
            "plain": {"tie_word_embeddings": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
            "biases": {"attention_bias": True, "head_dim": 32, "hidden_act": "gelu"},
            "dynamic": {
                "num_key_value_heads": 4,
                "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
            },
        },
    ),
    "hyperclovax": Row(
        sizes=SIZES | {"embedding_multiplier": 10.0, "logits_scaling": 0.125},
        models={
            "post-norms": {"attention_multiplier": 0.1, "residual_multiplier": 0.7},
            "pre-norms": {"use_post_norm": False, "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
            "biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 32, "tie_word_embeddings": True},
        },
    ),
    "jais2": Row(
        sizes=SIZES,
        models={
            "biases": {},
            "no-biases": {"attention_bias": False, "mlp_bias": False, "num_key_value_heads": 1, "head_dim": 32},
            "tied": {"tie_word_embeddings": True, "layer_norm_eps": 1e-2, "hidden_act": "gelu"},
        },
    ),
    "lfm2": Row(
        sizes=SIZES | {"block_multiple_of": 16, "full_attn_idxs": [1]},
        models={
            "three-taps": {},
            "biases": {"conv_bias": True, "conv_L_cache": 4, "num_key_value_heads": 1, "norm_eps": 1e-2},
            "widths": {
                "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False, "conv_L_cache": 2,
                "layer_types": ["full_attention", "conv", "conv"],
            },
            "odd": {
                "num_hidden_layers": 5, "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
                "block_ffn_dim_multiplier": 1.3, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
    "lfm2_moe": Row(
        sizes=SIZES
        | {
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 37, "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention", "conv"],
        },
        models={
            "all-experts": {
                "num_experts_per_tok": 6, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"],
            },
            "without-biases": {
                "use_expert_bias": False, "routed_scaling_factor": 2.5, "conv_L_cache": 4, "num_key_value_heads": 4,
                "layer_types": ["full_attention", "conv", "conv"], "tie_word_embeddings": False,
            },
            "not-normalized": {
                "norm_topk_prob": False, "num_dense_layers": 0, "conv_bias": True, "num_experts_per_tok": 1,
                "layer_types": ["conv", "conv", "full_attention"], "norm_eps": 1e-3,
            },
        },
    ),
    "llama": Row(
        sizes=SIZES | {"rms_norm_eps": 1e-5},
        models={
            "gqa": {},
            "mha": {"num_key_value_heads": 4},
            "mqa": {"num_key_value_heads": 1},
            "tied": {"tie_word_embeddings": True},
            "wide-heads": {"head_dim": 32},
            "biases": {"attention_bias": True, "mlp_bias": True},
            "large-eps": {"rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
            "gelu": {"hidden_act": "gelu", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3},
            "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
            "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
            "llama3": {
                "rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
            "yarn": {
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
            "longrope": {
                "rope_parameters": {
                    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0,
                    "original_max_position_embeddings": 128, "short_factor": [1.0 + 0.1 * i for i in range(8)],
                    "long_factor": [2.0 + i for i in range(8)],
                },
            },
            "proportional": {
                "rope_parameters": {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            },
            # Sizes that the attention kernel does not support: rotary embedding outside, then all in primitives.
            "head-dim-8": {"head_dim": 8},
            "head-dim-12": {"hidden_size": 48},
            # As on the hub: shards, bfloat16.
            "sharded-bf16": {"num_key_value_heads": 4, "tie_word_embeddings": True},
        },
        stored={"sharded-bf16": {"dtype": torch.bfloat16, "shard_size": "40KB"}},
        exported={"longrope": {"context_length": 128}},
    ),
    "llama4_text": Row(
        sizes=SIZES
        | {
            "head_dim": 16, "intermediate_size_mlp": 96, "num_hidden_layers": 4, "moe_layers": [],
            "attention_chunk_size": 8, "floor_scale": 8,
        },
        models={
            "chunks": {},
            "temperature": {"attn_scale": 0.7, "no_rope_layers": [0, 1, 1, 0], "attention_chunk_size": 256},
            "no-temperature": {"attn_temperature_tuning": False, "no_rope_layer_interval": 2},
            "no-qk-norm": {"use_qk_norm": False, "attention_chunk_size": 11, "tie_word_embeddings": True},
            "experts": {
                "moe_layers": [0, 1, 3], "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 37,
            },
            "every-second-layer": {
                "moe_layers": None, "interleave_moe_layer_step": 2, "num_local_experts": 3, "num_experts_per_tok": 1,
            },
            "layer-types": {
                "layer_types": ["full_attention", "chunked_attention", "full_attention", "chunked_attention"],
                "no_rope_layers": [1, 1, 0, 0], "rms_norm_eps": 1e-2,
            },
            "biases": {"attention_bias": True, "head_dim": 32, "num_key_value_heads": 1},
            "step": {"moe_layers": None, "interleave_moe_layer_step": 5, "intermediate_size_mlp": 80},
            "llama3": {
                "rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "mamba2": Row(
        sizes={
            "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 16,
            "state_size": 12, "n_groups": 2, "conv_kernel": 4, "expand": 2, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 0,
        },
        models={
            "trained-steps": {"time_step_limit": TRAINED_STEPS},
            "biases": {"use_bias": True, "use_conv_bias": False, "conv_kernel": 2, "layer_norm_epsilon": 1e-2},
            "steps": {"time_step_limit": [0.2, 0.9], "n_groups": 1, "tie_word_embeddings": True},
            "widths": {"hidden_size": 48, "expand": 3, "num_heads": 6, "head_dim": 24, "n_groups": 3, "state_size": 7},
        },
    ),
    "mimo": Row(
        sizes=SIZES,
        models={
            "predicts": {"num_nextn_predict_layers": 1, "use_mrope": False},
            "tied": {"tie_word_embeddings": True},
            "window": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        },
    ),
    "minicpm3": Row(
        sizes=SIZES | LATENT_SIZES,
        models={
            "multipliers": {"dim_model_base": 32},
            "plain-query": {"q_lora_rank": None, "scale_emb": 1, "scale_depth": None, "dim_model_base": None},
            "biases": {"attention_bias": True, "mlp_bias": True, "v_head_dim": None, "tie_word_embeddings": False},
            "longrope": {
                "hidden_act": "relu", "max_position_embeddings": 512, "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "rope_parameters": {
                    "rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 256,
                    "short_factor": [1.0, 1.5, 3.0], "long_factor": [1.0, 4.0, 9.0],
                },
            },
        },
        exported={"longrope": {"context_length": 256}},
    ),
    "ministral": Row(
        sizes=SIZES | {"sliding_window": 8, "head_dim": 16},
        models={
            "window": {},
            "layer-types": {
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 5,
                "head_dim": 32, "tie_word_embeddings": True,
            },
            "no-window": {"layer_types": ["full_attention"] * 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
            "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 4.0}},
        },
    ),
    "ministral3": Row(
        sizes=SIZES
        | {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 8, "max_position_embeddings": 256, "mscale": 1.0,
                "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.7,
            },
        },
        models={
            "grows": {},
            "window": {"sliding_window": 8, "num_key_value_heads": 1, "tie_word_embeddings": True},
            "mscale": {
                "head_dim": 32, "rms_norm_eps": 1e-2,
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0,
                    "original_max_position_embeddings": 16, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
                },
            },
        },
    ),
    "mistral": Row(
        sizes=SIZES,
        models={
            "window": {"sliding_window": 8},
            "no-window": {"sliding_window": None, "head_dim": 32},
            "window-of-two": {"sliding_window": 2, "num_key_value_heads": 4},
            "window-of-context": {"sliding_window": 256, "tie_word_embeddings": True},
            "linear": {
                "sliding_window": 5, "num_key_value_heads": 1, "rms_norm_eps": 1e-2,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 4.0},
            },
        },
    ),
    "mixtral": Row(
        sizes=SIZES | {"num_local_experts": 6, "num_experts_per_tok": 2},
        models={
            "all-experts": {"num_experts_per_tok": 6},
            "plain": {},
            "window": {"sliding_window": 9, "num_experts_per_tok": 1, "tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu", "num_local_experts": 5, "num_experts_per_tok": 3, "head_dim": 32},
            "odd": {"intermediate_size": 37, "num_key_value_heads": 1, "rms_norm_eps": 1e-3},
        },
    ),
    "mpt": Row(
        sizes={"vocab_size": VOCABULARY, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 256},
        models={
            "plain": {},
            "clipped": {"attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.1}},
            "six-heads": {"d_model": 96, "n_heads": 6, "layer_norm_epsilon": 1e-2},
            "free-head": {"tie_word_embeddings": False, "n_heads": 8},
        },
    ),
    "nanochat": Row(
        sizes=SIZES,
        models={
            "cap": {},
            "no-cap": {"final_logit_softcapping": None, "num_key_value_heads": 4, "tie_word_embeddings": True},
            "biases": {"attention_bias": True, "rms_norm_eps": 1e-2, "num_key_value_heads": 1},
            "linear": {
                "hidden_act": "gelu",
                "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            },
        },
    ),
    "nemotron": Row(
        sizes=SIZES,
        models={
            "plain": {},
            "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "norm_eps": 1e-2},
            "whole-heads": {
                "head_dim": 32, "tie_word_embeddings": True, "hidden_act": "gelu",
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
            },
            "linear": {
                "num_key_value_heads": 4,
                "rope_parameters": {
                    "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0, "partial_rotary_factor": 0.25,
                },
            },
        },
    ),
    "olmo": Row(
        sizes=SIZES,
        models={
            "plain": {},
            "clipped": {"clip_qkv": 0.5, "num_key_value_heads": 4, "tie_word_embeddings": True},
            "biases": {"attention_bias": True, "num_key_value_heads": 1, "hidden_act": "gelu"},
        },
    ),
    "olmo2": Row(
        sizes=SIZES,
        models={
            "gqa": {},
            "mha": {"num_key_value_heads": 4, "tie_word_embeddings": True},
            "large-eps": {"rms_norm_eps": 1e-2, "hidden_act": "gelu"},
            "biases": {"attention_bias": True, "num_key_value_heads": 1},
            "wide-heads": {"head_dim": 32},
            "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0}},
        },
    ),
    "olmo3": Row(
        sizes=SIZES | {"num_hidden_layers": 4, "sliding_window": 8},
        models={
            "three-of-four": {},
            "yarn": {
                "num_key_value_heads": 4,
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "attention_factor": 1.2079,
                        "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 64,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
                },
            },
            "layer-types": {
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                "sliding_window": 5, "head_dim": 32, "rms_norm_eps": 1e-2, "hidden_act": "gelu",
            },
            "biases": {"attention_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True},
            "window-of-context": {"sliding_window": 256},
        },
    ),
    "olmoe": Row(
        sizes=SIZES | {"num_experts": 8, "num_experts_per_tok": 3},
        models={
            "all-experts": {"num_experts_per_tok": 8},
            "plain": {},
            "normalized": {"norm_topk_prob": True, "num_key_value_heads": 4},
            "biases": {"attention_bias": True, "num_experts_per_tok": 8, "tie_word_embeddings": True},
            "relu": {"hidden_act": "relu", "num_experts": 3, "num_experts_per_tok": 1},
        },
    ),
    "opt": Row(
        sizes={
            "vocab_size": VOCABULARY, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 128,
        },
        models={
            "plain": {},
            "post-norm": {"do_layer_norm_before": False, "activation_function": "gelu"},
            "bare": {"enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False},
            "no-final-norm": {"_remove_final_layer_norm": True, "num_attention_heads": 8},
        },
    ),
    "persimmon": Row(
        sizes=SIZES_MHA,
        models={
            "normed-heads": {},
            "plain": {"qk_layernorm": False, "tie_word_embeddings": True, "num_attention_heads": 8},
            "whole-heads": {
                "layer_norm_eps": 1e-2, "hidden_act": "gelu",
                "rope_parameters": {"rope_type": "default", "rope_theta": 25000.0, "partial_rotary_factor": 1.0},
            },
        },
    ),
    "phi": Row(
        sizes=SIZES,
        models={
            "plain": {},
            "normed-heads": {"qk_layernorm": True, "layer_norm_eps": 1e-2},
            "whole-heads": {
                "num_key_value_heads": 4, "hidden_act": "relu",
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
            },
            "yarn": {
                "num_key_value_heads": 1, "qk_layernorm": True,
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "phi3": Row(
        sizes=SIZES | {"pad_token_id": 0},
        models={
            "plain": {},
            "window": {"sliding_window": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
            "partial": {
                "tie_word_embeddings": True, "hidden_act": "gelu", "sliding_window": 30,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75},
            },
            "longrope": {
                "original_max_position_embeddings": 128, "num_key_value_heads": 1,
                "rope_parameters": {
                    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                    "short_factor": [1.0 + 0.1 * i for i in range(6)], "long_factor": [2.0 + i for i in range(6)],
                },
            },
        },
        exported={"longrope": {"context_length": 128}},
    ),
    "phimoe": Row(
        sizes=SIZES | {"num_local_experts": 5, "router_jitter_noise": 0.1},
        models={
            "two-experts": {"num_local_experts": 2, "router_jitter_noise": 0.0},
            "biases": {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.4},
            "window": {
                "sliding_window": 9, "num_local_experts": 9, "num_key_value_heads": 4, "router_jitter_noise": 0.01,
            },
            "longrope": {
                "max_position_embeddings": 512, "num_key_value_heads": 1, "hidden_act": "gelu", "rms_norm_eps": 1e-2,
                "original_max_position_embeddings": 256, "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 256,
                    "short_factor": [1.0, 1.5, 3.0, 3.0, 4.0, 4.0, 5.0, 6.0], "long_factor": [9.0] * 8,
                    "short_mscale": 1.2, "long_mscale": 1.4,
                },
            },
        },
        exported={"longrope": {"context_length": 256}},
    ),
    "qwen2": Row(
        sizes=SIZES,
        models={
            "windows": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "tied": {"tie_word_embeddings": True},
            "layer-types": {
                "use_sliding_window": True, "sliding_window": 5,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            "unused-window": {"sliding_window": 8, "max_window_layers": 0, "num_key_value_heads": 1},
            "wide-heads": {"head_dim": 32, "rms_norm_eps": 1e-2},
            "yarn": {
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "qwen2_moe": Row(
        sizes=SIZES
        | {
            "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 37,
            "shared_expert_intermediate_size": 50,
        },
        models={
            "all-experts": {"num_experts_per_tok": 8},
            "normalized": {"norm_topk_prob": True, "qkv_bias": False, "num_key_value_heads": 4},
            "dense-layers": {
                "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_hidden_layers": 4, "num_experts_per_tok": 1,
                "tie_word_embeddings": True,
            },
            "windows": {
                "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2, "hidden_act": "gelu",
                "num_experts": 5,
            },
        },
    ),
    "qwen3": Row(
        sizes=SIZES | {"head_dim": 32},
        models={
            "tied": {"tie_word_embeddings": True},
            "windows": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "layer-types": {
                "use_sliding_window": True, "sliding_window": 5,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            "biases": {"attention_bias": True, "num_key_value_heads": 1, "head_dim": 16},
            "large-eps": {"rms_norm_eps": 1e-2, "num_key_value_heads": 4, "hidden_act": "gelu"},
            "yarn": {
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "qwen3_5_moe_text": Row(
        sizes=GATED_SIZES | EXPERT_SIZES,
        models={
            "all-experts": WIDE_HEADS | {"num_experts_per_tok": 6},
            "two-experts": {"linear_num_value_heads": 2, "linear_conv_kernel_dim": 3, "num_key_value_heads": 1},
            "one-expert": {
                "layer_types": ["full_attention", "linear_attention"], "num_hidden_layers": 2, "num_experts": 5,
                "num_experts_per_tok": 1, "tie_word_embeddings": True, "attention_bias": True,
            },
        },
    ),
    "qwen3_5_text": Row(
        sizes=GATED_SIZES,
        models={
            "wide-heads": WIDE_HEADS,
            "shared-keys": {},
            "tied": {"tie_word_embeddings": True, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 2},
            "widths": {
                "linear_key_head_dim": 6, "linear_value_head_dim": 14, "linear_num_key_heads": 3,
                "linear_num_value_heads": 3, "linear_conv_kernel_dim": 7, "attention_bias": True,
            },
            "odd": {
                "num_hidden_layers": 5, "head_dim": 32, "num_key_value_heads": 1, "linear_num_value_heads": 6,
                "layer_types": ["full_attention", *["linear_attention"] * 2, "full_attention", "linear_attention"],
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "partial_rotary_factor": 0.5,
                    "original_max_position_embeddings": 64,
                },
            },
            "linear-last": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        },
    ),
    "qwen3_next": Row(
        sizes=GATED_SIZES | EXPERT_SIZES,
        models={
            "all-experts": WIDE_HEADS | {"num_experts_per_tok": 6},
            "shared-keys": {
                "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 6,
                "linear_value_head_dim": 14, "norm_topk_prob": False, "num_key_value_heads": 1,
                "tie_word_embeddings": True,
            },
            "dense-layers": {
                "mlp_only_layers": [1], "linear_num_value_heads": 2, "linear_conv_kernel_dim": 3,
                "attention_bias": True, "layer_types": ["full_attention", "linear_attention", "full_attention"],
            },
            "steps": {
                "decoder_sparse_step": 2, "num_hidden_layers": 4, "num_experts_per_tok": 1, "num_experts": 5,
                "linear_conv_kernel_dim": 2, "layer_types": None,
            },
        },
    ),
    "qwen3_moe": Row(
        sizes=SIZES | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16},
        models={
            "all-experts": {"norm_topk_prob": True, "num_experts_per_tok": 8},
            "plain": {},
            "dense-layers": {"mlp_only_layers": [1], "head_dim": 32, "tie_word_embeddings": True},
            "steps": {"decoder_sparse_step": 2, "attention_bias": True, "num_experts_per_tok": 1},
            "window": {"use_sliding_window": True, "sliding_window": 10, "num_experts": 5, "norm_topk_prob": True},
        },
    ),
    "seed_oss": Row(
        sizes=SIZES | {"head_dim": 32},
        models={
            "qkv-biases": {},
            "no-biases": {"attention_bias": False, "num_key_value_heads": 4, "tie_word_embeddings": True},
            "biases": {"attention_out_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
            "linear": {
                "head_dim": 16, "hidden_act": "gelu",
                "rope_parameters": {"rope_type": "linear", "rope_theta": 10000000.0, "factor": 4.0},
            },
        },
    ),
    "smollm3": Row(
        sizes=SIZES | {"num_hidden_layers": 4, "pad_token_id": 0},
        models={
            "tied": {},
            "interval": {"no_rope_layer_interval": 2, "tie_word_embeddings": False, "num_key_value_heads": 4},
            "no-rope-layers": {"no_rope_layers": [0, 1, 0, 0], "head_dim": 32, "rms_norm_eps": 1e-2},
            "window": {"use_sliding_window": True, "sliding_window": 8, "no_rope_layer_interval": 2},
            "layer-types": {
                "use_sliding_window": True, "sliding_window": 5,
                "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
            },
            "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
        },
    ),
    "stablelm": Row(
        sizes=SIZES,
        models={
            "plain": {},
            "normed-heads": {"qk_layernorm": True, "use_qkv_bias": True, "layer_norm_eps": 1e-2},
            "parallel": {"use_parallel_residual": True, "num_key_value_heads": 4, "tie_word_embeddings": True},
            "whole-heads": {
                "use_parallel_residual": True, "qk_layernorm": True, "num_key_value_heads": 1, "hidden_act": "gelu",
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
            },
        },
    ),
    "starcoder2": Row(
        sizes=SIZES,
        models={
            "plain": {},
            "window": {"sliding_window": 8, "use_bias": False, "norm_epsilon": 1e-2},
            "wide-heads": {"head_dim": 32, "num_key_value_heads": 1, "tie_word_embeddings": False},
            "linear": {
                "hidden_act": "relu", "sliding_window": 30, "num_key_value_heads": 4,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
            },
        },
    ),
    "vaultgemma": Row(
        sizes=SIZES | {"head_dim": 16, "sliding_window": 8},
        models={
            "caps": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
            "no-caps": {
                "attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": 24,
                "head_dim": 32, "num_key_value_heads": 1,
            },
            "layer-types": {
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 5,
                "attention_bias": True, "rms_norm_eps": 1e-2, "tie_word_embeddings": False,
            },
        },
    ),
    "xglm": Row(
        sizes={
            "vocab_size": VOCABULARY, "d_model": 64, "ffn_dim": 96, "num_layers": 3, "attention_heads": 4,
            "max_position_embeddings": 256,
        },
        models={
            "plain": {},
            "unscaled": {"scale_embedding": False, "activation_function": "relu", "d_model": 80},
            "free-head": {"tie_word_embeddings": False, "attention_heads": 8, "pad_token_id": 0},
        },
    ),
    "youtu": Row(
        sizes=SIZES | LATENT_SIZES | {"rope_interleave": True},
        models={
            "plain": {},
            "halves": {"rope_interleave": False, "q_lora_rank": None, "tie_word_embeddings": False},
            "yarn": {
                "attention_bias": True, "v_head_dim": 17, "num_attention_heads": 3, "num_key_value_heads": 3,
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.8, "mscale_all_dim": 0.5,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
}  # fmt: skip

DISTINCT = {
    "apertus", "bamba", "bloom", "deepseek_v3", "falcon", "falcon_h1", "gemma2", "gemma3n_text", "gpt2", "gpt_oss",
    "gptj", "lfm2", "llama", "mpt", "olmoe", "qwen3_next", "bart", "led", "t5", "t5gemma", "whisper", "albert", "bert",
    "deberta-v2", "longformer", "modernbert", "mpnet",
}  # fmt: skip
"""Families of all kinds of models whose graphs differ from each other; the others are variants of them."""

WITH_ALL_OPS = DISTINCT | {"gemma4_text", "llama4_text", "mamba2", "minicpm3", "nanochat", "qwen3_5_text"}
"""Families that have every op between them, and what depends on lengths: chunks, shared caches, states alone."""

OF_LAYERS = re.compile("layer(?!_norm)|first_k|pattern|interval|sparse|time_step")
"""Names of fields that tell layers from each other."""


def fields_of(family: str, name: str) -> dict[str, Any]:
    """Return the fields of a model. Two layers of one kind are as good as three: the first of a family has three."""
    row = FAMILIES[family]
    fields = row.sizes | row.models[name]
    counts = {count: 2 for count in ("num_hidden_layers", "n_layer") if fields.get(count) == 3}
    alike = not any(OF_LAYERS.search(each) for each in fields.keys() - counts.keys())
    return fields | counts if alike and name != next(iter(row.models)) else fields
