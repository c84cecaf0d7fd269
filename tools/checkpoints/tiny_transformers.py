"""Write a tiny random model of an architecture of transformers, offline, from its default config.

    python tools/checkpoints/tiny_transformers.py olmo3 /tmp/olmo3

All sizes of the config are replaced by small ones; everything else keeps its default. Windows are shorter than the
texts of a verification.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LAYERS = 4
CONTEXT = 256
WINDOW = 16

SIZES = {
    "vocab_size": 131, "hidden_size": 64, "n_embd": 64, "d_model": 64, "dim": 64, "embedding_size": 64,
    "intermediate_size": 96, "ffn_dim": 96, "n_inner": 96, "ffn_hidden_size": 96, "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96, "moe_intermediate_size": 32,
    "num_hidden_layers": LAYERS, "n_layer": LAYERS, "n_layers": LAYERS, "num_layers": LAYERS, "decoder_layers": LAYERS,
    "encoder_layers": 1,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "kv_channels": 32,
    "q_lora_rank": 24, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    "max_position_embeddings": CONTEXT, "n_positions": CONTEXT, "n_ctx": CONTEXT,
    "sliding_window": WINDOW, "attention_window": WINDOW,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 2, "num_expert_group": 2, "topk_group": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "mamba_d_ssm": 128, "ssm_state_size": 16, "n_groups": 2, "vocab_size_per_layer_input": 131,
    "hidden_size_per_layer_input": 8, "shared_intermediate_size": 96, "shared_expert_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 96,
}  # fmt: skip
"""Small sizes, under all names that configs have for them."""

OF_OTHERS = {
    "image_size": 28, "patch_size": 14, "depth": 1, "embed_dim": 64, "out_hidden_size": 64, "projection_dim": 64,
    "vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64, "mlp_dim": 96, "num_heads": 4,
    "global_attn_indexes": [0], "output_channels": 64, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0],
}  # fmt: skip
"""Small sizes of the models of other modalities inside a model."""

ABSENT_BY_DEFAULT = (
    "num_key_value_heads", "head_dim", "sliding_window", "q_lora_rank", "n_inner", "num_experts_per_tok",
)  # fmt: skip
"""Sizes that are set even if the config's default is None."""

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
INDEXER = {"n_heads": 2, "kv_heads": 1, "head_dim": 16, "budget": 8, "compress_ratio": 4}

LATENT = {"num_key_value_heads": 4, "head_dim": 16}
"""Latent attention: every head has keys of its own, and its head_dim is that of the rotated part."""

FROM_PADDING = {"max_position_embeddings": CONTEXT + 2, "pad_token_id": 1, "bos_token_id": 0}
"""Positions that start behind the padding token."""

CHOICES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash"), LATENT),
    **dict.fromkeys(
        ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"), FROM_PADDING
    ),
    "bamba": {"attn_layer_indices": [1, 3], "pad_token_id": None},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_text": LATENT,
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "intermediate_size": [96] * LAYERS,
        "activation_sparsity_pattern": [0.5, 0.0] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], LAYERS // 2]], "window_size": WINDOW},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2)},
    "helium": {"head_dim": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "mamba2": {"num_heads": 4, "head_dim": 32, "state_size": 16},
    "minicpm3": LATENT,
    "qwen4_exp_text": {f"indexer_{name}": size for name, size in INDEXER.items()},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local"] * LAYERS},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"default_language": "en_XX"},
    "youtu": LATENT,
    "zamba2": {"mamba_headdim": 16, "attention_hidden_size": 128, "attention_head_dim": 32, "num_query_groups": 4},
}
"""Fields that single architectures need to be small, or to resemble their published checkpoints."""


def tiny_config(model_type: str, **options: Any) -> dict[str, Any]:
    """Return the fields of a small config.json. Raises transformers' error if there is no default config."""
    small = _small(model_type, CONFIG_MAPPING[model_type]().to_dict())
    return {"model_type": model_type} | small | CHOICES.get(model_type, {}) | options


def _small(model_type: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return small sizes for the fields of a default config, and for the configs inside it."""
    small = {
        name: size
        for name, size in SIZES.items()
        if isinstance(defaults.get(name), int) or (name in defaults and name in ABSENT_BY_DEFAULT)
    }
    for index, name in enumerate(name for name in defaults if name.endswith("_token_id")):
        small[name] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}.get(name, 3 + index)
    for name in ("layer_types", "layers_block_type"):
        kinds = list(dict.fromkeys(defaults.get(name) or []))
        if kinds:
            # Keep one layer of every kind that the default config has.
            small[name] = [kinds[layer % len(kinds)] for layer in range(LAYERS)]
    if "is_decoder" in defaults:
        small["is_decoder"] = True
    for name, inner in defaults.items():
        if isinstance(inner, dict) and inner.get("model_type") in CONFIG_MAPPING:
            kind = inner["model_type"]
            others = {} if "text" in name else {name: size for name, size in OF_OTHERS.items() if name in inner}
            small[name] = {"model_type": kind} | _small(kind, inner) | others | CHOICES.get(kind, {})
    return small


def make_model(config: Any, folder: Path, seed: int = 0) -> None:
    """Save a model with seeded weights: norms near 1, all others normal with a deviation of 1 / sqrt(inputs).

    Stored buffers move away from what the constructor gives them: the biases of routers begin as zeros.
    """
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1:
                parameter.copy_(0.2 * noise + (1 if "norm" in name.lower() and name.endswith("weight") else 0))
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        stored = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in stored and buffer.is_floating_point():
                buffer.add_(0.1 * torch.randn_like(buffer))
        for module in model.modules():
            if getattr(module, "scaling", None) == 1.0 and hasattr(module, "q_norm"):
                module.q_norm.weight.mul_(module.head_dim**-0.5)  # nothing scales the scores; trained queries are small
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0  # some models of transformers do so when they are loaded
    model.save_pretrained(folder)


def main() -> None:
    """Write one model."""
    model_type, folder = sys.argv[1:]
    fields = tiny_config(model_type)
    make_model(CONFIG_MAPPING[model_type].from_dict(fields), Path(folder))
    print(f"a random {model_type} is in {folder}")


if __name__ == "__main__":
    main()
