"""Models of several modalities that the text model inside is tested with: tiny random ones of transformers' own class.

WRAPPERS[model_type] holds by name what each model has beside `TEXT` in its text_config (`text`), and its outer fields.
"""

from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 131

TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HEAD = {"head_dim": 16}
COHERE2 = {"model_type": "cohere2", "sliding_window": 8}
IMAGES = {"image_token_index": 9}
LFM2 = {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}

GATED = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 10, "rms_norm_eps": 1e-4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25,
    },
}  # fmt: skip
EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 24,
}  # fmt: skip

CLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "projection_dim": 16,
}  # fmt: skip
QWEN_VISION = {
    "depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14, "intermediate_size": 48,
    "out_hidden_size": 64, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0],
}  # fmt: skip
LLAMA4_VISION = CLIP | {"vision_output_dim": 48, "projector_input_dim": 48, "projector_output_dim": 48}
AUDIO = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 8}
ENCODER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_mel_bins": 8,
}  # fmt: skip
SIGLIP2 = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14,
    "num_patches": 16,
}  # fmt: skip
SAM = {
    "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "window_size": 2, "global_attn_indexes": [0], "mlp_dim": 48,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A random model: fields of its text_config beside `TEXT`, of its other configs, and of the whole config.json.

    logit_scale: what transformers' text model multiplies its logits with by itself, and not inside the whole model.
    """

    text: dict[str, Any] = field(default_factory=dict)
    others: dict[str, dict[str, Any]] = field(default_factory=lambda: {"vision_config": CLIP})
    outer: dict[str, Any] = field(default_factory=dict)
    auto: str = "AutoModelForImageTextToText"
    logit_scale: float = 1.0

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of transformers' config class."""
        return self.others | {"text_config": TEXT | self.text} | self.outer


def qwen_vl(**text: Any) -> Model:
    return Model(text=MROPE | text, others={"vision_config": QWEN_VISION})


MODELS = {
    "aya_vision": {"plain": Model(text=COHERE2, outer=IMAGES, logit_scale=0.0625)},
    "cohere2_vision": {
        "plain": Model(
            text=COHERE2, outer={"image_token_id": 9, "alignment_intermediate_size": 64}, logit_scale=0.0625,
        ),
    },
    "exaone4_5": {
        "plain": Model(
            text={"model_type": "exaone4", "sliding_window": 8},
            others={"vision_config": QWEN_VISION}, outer={"image_token_id": 9},
        ),
    },
    "deepseek_vl": {"llama": Model(text={"model_type": "llama"}, outer={"image_token_id": 9})},
    "gemma3": {
        "tied": Model(text=HEAD | {"sliding_window": 8, "num_hidden_layers": 6}),
        "untied": Model(
            text=HEAD | {"sliding_window": 5, "sliding_window_pattern": 2}, outer={"tie_word_embeddings": False}
        ),
        "linear": Model(
            text=HEAD | {
                "sliding_window": 8, "num_hidden_layers": 6,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                },
            },
        ),
    },
    "gemma3n": {
        "shared": Model(
            text=HEAD
            | {
                "sliding_window": 8, "num_hidden_layers": 3, "num_kv_shared_layers": 1, "laurel_rank": 12,
                "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": VOCABULARY,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "activation_sparsity_pattern": [0.9, 0.0, 0.5],
            },
            others={
                "vision_config": {"hidden_size": 32},
                "audio_config": {"hidden_size": 32, "conf_num_hidden_layers": 1, "conf_num_attention_heads": 2},
            },
        ),
    },
    "gemma4": {
        "shared": Model(
            text=HEAD
            | {
                "sliding_window": 8, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "global_head_dim": 32,
                "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": VOCABULARY,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            others={},
        ),
    },
    "gemma4_unified": {
        "keys as values": Model(
            text=HEAD
            | {
                "sliding_window": 8, "num_hidden_layers": 2, "global_head_dim": 32, "attention_k_eq_v": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            others={
                "vision_config": {"mm_embed_dim": 24, "output_proj_dims": 24, "mm_posemb_size": 12, "patch_size": 3},
            },
        ),
    },
    "glm4v": {
        "mrope": Model(
            text={
                "rope_parameters": {
                    "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5,
                },
            },
            others={"vision_config": QWEN_VISION}, outer={"image_token_id": 9},
        ),
    },
    "glmasr": {
        "llama": Model(
            text={"model_type": "llama"}, others={"audio_config": ENCODER}, outer={"audio_token_id": 9},
            auto="AutoModelForMultimodalLM",
        ),
    },
    "got_ocr2": {
        "qwen2": Model(text={"model_type": "qwen2"}, others={"vision_config": SAM}, outer={"image_token_index": 9}),
    },
    "idefics2": {"plain": Model(text={"model_type": "mistral", "sliding_window": 8}, outer={"image_token_id": 9})},
    "idefics3": {"plain": Model(text={"model_type": "llama"}, outer={"image_token_id": 9, "scale_factor": 2})},
    "internvl": {"qwen2": Model(text={"model_type": "qwen2"}, outer={"image_token_id": 9, "downsample_ratio": 0.5})},
    "lighton_ocr": {"qwen3": Model(text=HEAD | {"model_type": "qwen3"}, outer={"image_token_id": 9})},
    "llama4": {
        "dense": Model(
            text=HEAD | {"intermediate_size_mlp": 96, "moe_layers": [], "attention_chunk_size": 8},
            others={"vision_config": LLAMA4_VISION}, outer=IMAGES,
        ),
    },
    "lfm2_vl": {
        "plain": Model(text=LFM2, others={"vision_config": SIGLIP2}, outer={"image_token_id": 9}),
        "untied": Model(
            text=LFM2 | {"conv_L_cache": 2}, others={"vision_config": SIGLIP2},
            outer={"image_token_id": 9, "tie_word_embeddings": False},
        ),
    },
    "llava": {
        "llama": Model(text={"model_type": "llama"}, outer=IMAGES),
        "mistral": Model(text={"model_type": "mistral", "sliding_window": 8}, outer=IMAGES),
        "tied": Model(text={"model_type": "qwen2"}, outer=IMAGES | {"tie_word_embeddings": True}),
    },
    "llava_next": {"mistral": Model(text={"model_type": "mistral", "sliding_window": None}, outer=IMAGES)},
    "llava_next_video": {"llama": Model(text={"model_type": "llama"}, outer=IMAGES | {"video_token_index": 8})},
    "llava_onevision": {"qwen2": Model(text={"model_type": "qwen2"}, outer=IMAGES | {"video_token_index": 8})},
    "mistral3": {
        "ministral": Model(text=HEAD | {"model_type": "ministral3"}, outer=IMAGES),
        "tied": Model(text=HEAD | {"model_type": "mistral", "sliding_window": None}, outer=IMAGES),
        "untied": Model(
            text=HEAD | {"model_type": "mistral", "sliding_window": 8},
            outer=IMAGES | {"tie_word_embeddings": False, "spatial_merge_size": 2},
        ),
    },
    "qwen2_5_omni_thinker": {
        "mrope": Model(
            text=MROPE, others={"vision_config": QWEN_VISION, "audio_config": AUDIO | {"output_dim": 64}},
            outer={"audio_token_index": 9, "image_token_index": 8, "video_token_index": 7, "vision_start_token_id": 6},
            auto="AutoModelForMultimodalLM",
        ),
    },
    "qwen2_5_vl": {
        "mrope": qwen_vl(),
        "windows": qwen_vl(use_sliding_window=True, sliding_window=8, max_window_layers=1),
    },
    "qwen2_audio": {
        "plain": Model(
            text={"model_type": "qwen2"}, others={"audio_config": AUDIO}, outer={"audio_token_index": 9},
            auto="AutoModelForMultimodalLM",
        ),
    },
    "qwen2_vl": {
        "mrope": qwen_vl(),
        "old-name": qwen_vl(rope_parameters={"type": "mrope", "rope_theta": 5000.0, "mrope_section": [4, 2, 2]}),
    },
    "qwen3_5": {
        "plain": Model(text=GATED, others={"vision_config": QWEN_VISION}, outer={"image_token_id": 9}),
        "tied": Model(
            text=GATED | {"linear_conv_kernel_dim": 3}, others={"vision_config": QWEN_VISION},
            outer={"image_token_id": 9, "tie_word_embeddings": True},
        ),
    },
    "qwen3_5_moe": {
        "plain": Model(text=GATED | EXPERTS, others={"vision_config": QWEN_VISION}, outer={"image_token_id": 9}),
    },
    "qwen3_vl": {
        "mrope": qwen_vl(head_dim=16),
        "interleaved": qwen_vl(
            head_dim=32, rope_parameters={
                "rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
            },
        ),
    },
    "paddleocr_vl": {
        "mrope": Model(
            text=MROPE | {"model_type": "paddleocr_vl_text", "head_dim": 16},
            others={"vision_config": {
                "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 1, "num_attention_heads": 3,
            }},
        ),
    },
    "qwen3_vl_moe": {
        "experts": qwen_vl(
            num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40, model_type="qwen3_vl_moe_text", head_dim=16,
            rope_parameters={
                "rope_type": "default", "rope_theta": 1e6, "mrope_section": [3, 3, 2], "mrope_interleaved": True,
            },
        ),
    },
    "smolvlm": {
        "plain": Model(text={"model_type": "llama"}, outer={"image_token_id": 9}),
        "linear": Model(
            text={
                "model_type": "llama", "attention_bias": True,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
            },
            outer={"image_token_id": 9},
        ),
    },
    "video_llava": {"llama": Model(text={"model_type": "llama"}, outer=IMAGES | {"video_token_index": 8})},
    "vipllava": {"llama": Model(text={"model_type": "llama"}, outer=IMAGES | {"vision_feature_layers": [0]})},
    "voxtral": {
        "llama": Model(
            text=HEAD | {"model_type": "llama"}, others={"audio_config": ENCODER}, outer={"audio_token_id": 9},
            auto="AutoModelForMultimodalLM",
        ),
    },
}  # fmt: skip
