"""The models that families of pictures and text are tested with: random ones of transformers' classes.

MODELS[model_type] holds options of each model's config and of its processor. `save` writes one with a tokenizer of its
own, whose special tokens are those that the family's processor looks for.
"""

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import processors
from tower_models import TEXT, VOCABULARY, byte_level_tokenizer, randomize, reloaded, saved_tokenizer

SIDE = 3
"""Rows and columns of tiles that the tokenizer has names for."""
SPECIAL = [
    "<pad>", "<s>", "</s>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, SIDE + 1) for column in range(1, SIDE + 1)),
    "<IMG_CONTEXT>", "<img>", "</img>", "<video>",
    "<start_of_image>", "<end_of_image>", "<image_soft_token>",
    "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>",
    *(f"<|img_row_{row}_col_{column}|>" for row in (1, 2) for column in range(1, 4)),
    "<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>",
    "[IMG]", "[IMG_BREAK]", "[IMG_END]",
]  # fmt: skip
IMAGE = SPECIAL.index("<image>")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "paddleocr_vl")
"""Families whose pictures stand between marks."""
PIXTRAL = ("llava_pixtral", "mistral3")
"""Families whose rows of a picture end with a token."""
MARKS = {
    "gemma3": "<start_of_image>", "gemma4": "<image_soft_token>", "gemma4_unified": "<image_soft_token>",
    "internvl": "<IMG_CONTEXT>", "lighton_ocr": "<|image_pad|>",
    **dict.fromkeys(PIXTRAL, "[IMG]"),
    **dict.fromkeys(QWEN, "<|vision_start|><|image_pad|><|vision_end|>"),
}  # fmt: skip
"""The text that stands for a picture in a prompt, where it is not `<image>`."""
STATES = {
    **dict.fromkeys(("gemma3", "gemma4", "gemma4_unified"), "<image_soft_token>"),
    "internvl": "<IMG_CONTEXT>", "lighton_ocr": "<|image_pad|>",
    **dict.fromkeys(PIXTRAL, "[IMG]"),
    **dict.fromkeys(QWEN, "<|image_pad|>"),
}  # fmt: skip
"""The token in the place of each state of a picture, where it is not `<image>`."""
GEMMA_TOKENS = {
    "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>",
}  # fmt: skip
GEMMA4_TOKENS = GEMMA_TOKENS | {
    "audio_token": "<|image_pad|>", "boa_token": "<|image_start|>", "eoa_token": "<|image_end|>",
}  # fmt: skip
NAMED_TOKENS = {
    "gemma3": GEMMA_TOKENS, "gemma4": GEMMA4_TOKENS, "gemma4_unified": GEMMA4_TOKENS,
    "paddleocr_vl": {"image_token": "<|image_pad|>"},
    "lighton_ocr": {
        "image_token": "<|image_pad|>", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
    },
    "internvl": {
        "context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>",
        "video_token": "<video>",
    },
}  # fmt: skip
"""Tokens that a family's tokenizer has names for."""
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
TOWER = {
    "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 28,
    "patch_size": 7, "layer_norm_eps": 1e-3,
}  # fmt: skip

GOT_OCR2 = transformers.GotOcr2ImageProcessorPil
IDEFICS3, SMOLVLM = transformers.Idefics3ImageProcessorPil, transformers.SmolVLMImageProcessorPil
GRID = transformers.Qwen2VLImageProcessorPil
CLIP, GEMMA3, SIGLIP, LLAVA = (
    transformers.CLIPImageProcessorPil,
    transformers.Gemma3ImageProcessorPil,
    transformers.SiglipImageProcessorPil,
    transformers.LlavaImageProcessorPil,
)


@dataclass(frozen=True)
class Model:
    """A random model: fields of its tower, of its text model and of the whole; its processor, and the file of that."""

    vision: dict[str, Any] = field(default_factory=dict)
    text: dict[str, Any] = field(default_factory=dict)
    outer: dict[str, Any] = field(default_factory=dict)
    processor: type | str = SMOLVLM
    picture: dict[str, Any] = field(default_factory=dict)
    file: dict[str, Any] = field(default_factory=dict)


def tiles(size: int, longest: int, **others: Any) -> dict[str, Any]:
    return {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": size}, **others}


def grids(height: int, width: int, most: int, **others: Any) -> dict[str, Any]:
    return {"size": {"height": height, "width": width}, "max_patches": most, **others}


def pixels(least: int, most: int, **others: Any) -> dict[str, Any]:
    return {"size": {"shortest_edge": least, "longest_edge": most}, **others}


def turned(*sections: int, **others: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), **others}}


def square(size: int) -> dict[str, Any]:
    return {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}


QWEN2_TEXT = {"model_type": "qwen2_vl_text", "head_dim": None, "hidden_size": 48, "num_attention_heads": 3}
QWEN2_TOWER = {
    "depth": 3, "embed_dim": 24, "hidden_size": 48, "num_heads": 3, "patch_size": 7, "mlp_ratio": 2,
}  # fmt: skip
QWEN2_5_TOWER = {
    "depth": 3, "hidden_size": 24, "out_hidden_size": 48, "intermediate_size": 20, "num_heads": 3, "patch_size": 7,
    "window_size": 28, "fullatt_block_indexes": [1],
}  # fmt: skip
QWEN3_TEXT = {
    "model_type": "qwen3_vl_text", "head_dim": 16, "hidden_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
QWEN3_MOE_TEXT = {
    **QWEN3_TEXT, "model_type": "qwen3_vl_moe_text", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "mlp_only_layers": [1],
}  # fmt: skip
QWEN3_5_TOWER = {
    "depth": 3, "hidden_size": 24, "out_hidden_size": 40, "intermediate_size": 36, "num_heads": 3, "patch_size": 7,
    "num_position_embeddings": 25,
}  # fmt: skip
QWEN3_TOWER = {**QWEN3_5_TOWER, "deepstack_visual_indexes": [0, 2]}
PARTIAL = {"partial_rotary_factor": 0.25}
QWEN3_5_TEXT = {
    "model_type": "qwen3_5_text", "head_dim": 32, "num_attention_heads": 2, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention"], "initializer_range": 0.1,
}  # fmt: skip
QWEN3_5_MOE_TEXT = {
    **QWEN3_5_TEXT, "model_type": "qwen3_5_moe_text", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20,
}  # fmt: skip
CLIP_TOWER = {"model_type": "clip_vision_model", "projection_dim": 12}
LLAVA_NEXT, ONEVISION = transformers.LlavaNextImageProcessorPil, transformers.LlavaOnevisionImageProcessorPil
PINPOINTS = {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]}
GRIDS_28 = {"image_grid_pinpoints": [[28 * rows, 28 * columns] for rows in range(1, 4) for columns in range(1, 4)]}
NAFLEX_TOWER = {"model_type": "siglip2_vision_model", "patch_size": 5, "num_patches": 16}
LFM2 = {
    "model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16,
    "num_hidden_layers": 3,
}  # fmt: skip
LFM2_TILES = {
    "encoder_patch_size": 5, "tile_size": 30, "min_image_tokens": 3, "max_image_tokens": 12, "max_tiles": 6,
    "max_pixels_tolerance": 1.5, "do_convert_rgb": True,
}  # fmt: skip
SIGLIP_TOWER = {"model_type": "siglip_vision_model"}
GEMMA3_TEXT = {
    "model_type": "gemma3_text", "num_hidden_layers": 3, "query_pre_attn_scalar": 10, "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
GEMMA4_TOWER = {
    "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "head_dim": 8, "patch_size": 3, "position_embedding_size": 256, "rms_norm_eps": 1e-3,
}  # fmt: skip
GEMMA4_TEXT = {
    "model_type": "gemma4_text", "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 2,
}  # fmt: skip
GEMMA4 = transformers.Gemma4ImageProcessorPil
GEMMA = {"model_type": "gemma"}
ROPE = {"rope_theta": 1e4, "rope_type": "default"}

PIXTRAL_PICTURES = transformers.PixtralImageProcessorPil
PIXTRAL_TOWER = {
    "model_type": "pixtral", "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 3,
    "num_attention_heads": 3, "image_size": 70, "patch_size": 7,
}  # fmt: skip
ROW_GRID = transformers.PaddleOCRVLImageProcessorPil
PADDLE_TEXT = {"model_type": "paddleocr_vl_text"}
PADDLE_TOWER = {
    "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 28,
    "patch_size": 7, "layer_norm_eps": 1e-3,
}  # fmt: skip
QWEN3_PLAIN = {"model_type": "qwen3"}
FULL_LAST = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
PIXTRAL_FILE = {"processor_class": "PixtralProcessor"}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def edge(longest: int, *, patch_size: int, **others: Any) -> dict[str, Any]:
    patch = {"height": patch_size, "width": patch_size}
    return {"size": {"longest_edge": longest}, "patch_size": patch, **others}


def fixed(size: int) -> dict[str, Any]:
    return {"size": {"height": size, "width": size}}


def qwen3_vl(text: dict[str, Any]) -> dict[str, Model]:
    """Return the models of Qwen3-VL, whose text models have experts or none."""
    return {
        "deepstack": Model(
            vision=QWEN3_TOWER, text=text | turned(4, 2, 2, mrope_interleaved=True),
            processor=GRID, picture=pixels(14 * 14 * 4, 14 * 14 * 40, patch_size=7),
        ),
        "one more": Model(
            vision={**QWEN3_TOWER, "deepstack_visual_indexes": [1], "num_position_embeddings": 4, "patch_size": 6,
                    "hidden_act": "gelu"},
            text=text | turned(2, 1, 1, mrope_interleaved=True) | {"head_dim": 8, "tie_word_embeddings": True},
            outer={"tie_word_embeddings": True}, processor=GRID,
            picture=pixels(12 * 12 * 4, 12 * 12 * 30, patch_size=6, image_mean=[0.5] * 3, image_std=[0.5] * 3),
        ),
        "of nine": Model(
            vision={**QWEN3_TOWER, "num_position_embeddings": 49, "spatial_merge_size": 3, "patch_size": 5,
                    "deepstack_visual_indexes": [0, 1, 2]},
            text=text | turned(3, 3, 2, mrope_interleaved=True) | {"num_hidden_layers": 3},
            processor=GRID, picture=pixels(15 * 15, 15 * 15 * 30, patch_size=5, merge_size=3),
        ),
    }  # fmt: skip


def qwen3_5(text: dict[str, Any]) -> dict[str, Model]:
    """Return the models of Qwen3.5, whose text models have experts or none."""
    return {
        "hybrid": Model(
            vision=QWEN3_5_TOWER, text=text | turned(2, 1, 1, mrope_interleaved=True, **PARTIAL),
            processor=GRID, picture=pixels(14 * 14 * 4, 14 * 14 * 40, patch_size=7),
        ),
        "attention": Model(
            vision={**QWEN3_5_TOWER, "num_position_embeddings": 9, "num_heads": 2},
            text=text | turned(3, 3, 2, mrope_interleaved=True, partial_rotary_factor=0.5) | {
                "head_dim": 32, "layer_types": ["full_attention", "full_attention"],
            },
            processor=GRID, picture=pixels(14 * 14 * 4, 14 * 14 * 40, patch_size=7),
        ),
        "of nine": Model(
            vision={**QWEN3_5_TOWER, "spatial_merge_size": 3, "patch_size": 5},
            text=text | turned(2, 1, 1, mrope_interleaved=True, **PARTIAL) | {"tie_word_embeddings": True},
            outer={"tie_word_embeddings": True}, processor=GRID,
            picture=pixels(15 * 15, 15 * 15 * 30, patch_size=5, merge_size=3),
        ),
    }  # fmt: skip


MODELS = {
    "gemma3": {
        "a window in a block": Model(
            vision=SIGLIP_TOWER, text=GEMMA3_TEXT, processor=GEMMA3, picture=fixed(28),
            outer={"mm_tokens_per_image": 4}, file={"image_seq_length": 4},
        ),
        "patches left out": Model(
            # squares of 2 x 2 of 5 x 5 patches; a window of a picture and a few tokens
            vision=SIGLIP_TOWER | {"image_size": 35, "vision_use_head": False, "num_attention_heads": 2},
            text=GEMMA3_TEXT | {"sliding_window": 9, "num_key_value_heads": 5, "layer_types": None,
                                "rope_parameters": {"full_attention": ROPE | {"rope_theta": 1e6, "factor": 8.0,
                                "rope_type": "linear"}, "sliding_attention": ROPE}},
            processor=GEMMA3, picture=fixed(35) | {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7]},
            outer={"mm_tokens_per_image": 4}, file={"image_seq_length": 4},
        ),
        "odd heads": Model(
            # heads of 12, which the kernel does not take; every patch is a state, and no window hides one
            vision=SIGLIP_TOWER, text=GEMMA3_TEXT | {"head_dim": 12, "num_attention_heads": 2,
                                                     "num_key_value_heads": 2, "sliding_window": 20},
            processor=GEMMA3, picture=fixed(28), outer={"mm_tokens_per_image": 16}, file={"image_seq_length": 16},
        ),
    },
    "lfm2_vl": {
        "tiles": Model(
            vision=NAFLEX_TOWER, text=LFM2, processor="Lfm2VlImageProcessor", picture=LFM2_TILES,
            outer={"projector_hidden_size": 44, "tie_word_embeddings": False},
        ),
        "begins": Model(
            # a tokenizer that begins texts with a token, which the processor leaves out
            vision=NAFLEX_TOWER | {"num_patches": 49, "num_attention_heads": 2, "vision_use_head": False},
            text=LFM2 | {"conv_L_cache": 2, "tie_word_embeddings": True}, processor="Lfm2VlImageProcessor",
            picture=LFM2_TILES | {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7], "max_tiles": 3},
            outer={"projector_hidden_size": 33, "projector_use_layernorm": False, "projector_bias": False},
        ),
        "whole": Model(
            vision=NAFLEX_TOWER | {"patch_size": 4, "num_patches": 9, "hidden_act": "gelu"}, text=LFM2,
            processor="Lfm2VlImageProcessor",
            picture=LFM2_TILES | {
                "encoder_patch_size": 4, "downsample_factor": 3, "tile_size": 24, "max_image_tokens": 20,
                "do_image_splitting": False,
            },
            outer={"projector_hidden_size": 20, "downsample_factor": 3, "projector_hidden_act": "relu"},
        ),
    },
    "llava_next": {
        "clip": Model(
            vision=CLIP_TOWER, processor=LLAVA_NEXT, picture=square(28) | PINPOINTS, outer=PINPOINTS,
            file={"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        ),
        "siglip": Model(
            vision=SIGLIP_TOWER, text={"model_type": "mistral"}, processor=LLAVA_NEXT,
            picture=square(28) | PINPOINTS | {"resample": 2},
            outer={"vision_feature_layer": -1, "vision_feature_select_strategy": "full", **PINPOINTS},
            file={"patch_size": 7, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0},
        ),
        "odd": Model(
            # nine patches of a tile, two layers, and grids whose pictures are padded by odd numbers
            vision=CLIP_TOWER | {"image_size": 30, "patch_size": 10, "num_attention_heads": 2},
            text={"model_type": "qwen2", "tie_word_embeddings": True}, processor=LLAVA_NEXT,
            picture=square(30) | {"image_grid_pinpoints": [[30, 90], [120, 30], [60, 60]]},
            outer={
                "vision_feature_layer": [-2, 1], "image_grid_pinpoints": [[30, 90], [120, 30], [60, 60]],
                "multimodal_projector_bias": False, "tie_word_embeddings": True,
            },
            file={"patch_size": 10, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        ),
    },
    "llava_onevision": {
        "shrunk": Model(
            vision=SIGLIP_TOWER, text={"model_type": "qwen2"}, processor=ONEVISION,
            picture={"size": {"height": 28, "width": 28}, **GRIDS_28},
            outer={"vision_aspect_ratio": "anyres_max_2", **GRIDS_28},
            file={
                "num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2",
            },
        ),
        "nine": Model(
            vision=SIGLIP_TOWER | {"image_size": 21}, text={"model_type": "qwen2", "tie_word_embeddings": True},
            processor=ONEVISION,
            picture={
                "size": {"height": 21, "width": 21}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7],
                "image_grid_pinpoints": [[21, 42], [63, 63], [84, 84], [21, 105]],
            },
            outer={"image_grid_pinpoints": [[21, 42], [63, 63], [84, 84], [21, 105]], "tie_word_embeddings": True},
            file={"num_image_tokens": 9, "vision_feature_select_strategy": "full"},
        ),
        "layer": Model(
            vision=SIGLIP_TOWER | {"num_attention_heads": 2}, text={"model_type": "qwen2"}, processor=ONEVISION,
            picture={"size": {"height": 28, "width": 28}, **GRIDS_28},
            outer={"vision_feature_layer": -2, "projector_hidden_act": "quick_gelu", **GRIDS_28},
            file={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        ),
    },
    "smolvlm": {
        "tiles": Model(picture=tiles(28, 84), outer={"scale_factor": 2}, file={"image_seq_len": 4}),
        "fractions": Model(
            # 19 patches a side, of which float32 makes other positions of some; one square of all
            vision={"image_size": 57, "patch_size": 3, "num_hidden_layers": 1},
            outer={"scale_factor": 19}, picture=tiles(57, 57 * 2), file={"image_seq_len": 1},
        ),
        "whole": Model(
            picture=tiles(28, 60, do_image_splitting=False, resample=3), text={"tie_word_embeddings": True},
            outer={"scale_factor": 4, "tie_word_embeddings": True}, file={"image_seq_len": 1},
        ),
    },
    "idefics3": {
        "tiles": Model(
            processor=IDEFICS3, picture=tiles(28, 56), outer={"scale_factor": 4}, file={"image_seq_len": 1},
        ),
        "other sizes": Model(
            # tiles of 42 pixels over a table of 4 x 4 positions
            processor=IDEFICS3, picture=tiles(42, 84), outer={"scale_factor": 2}, file={"image_seq_len": 9},
        ),
        "two layers": Model(
            vision={"num_attention_heads": 2, "hidden_act": "gelu"}, text={"num_key_value_heads": 5},
            processor=IDEFICS3, picture=tiles(28, 84, image_mean=[0.1, 0.2, 0.3], image_std=[0.9, 0.8, 0.7]),
            outer={"scale_factor": 2}, file={"image_seq_len": 4},
        ),
    },
    "internvl": {
        "tiles": Model(processor=GOT_OCR2, picture=grids(28, 28, 6), file={"image_seq_length": 4}),
        "norms": Model(
            vision={
                "norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True, "use_mean_pooling": False,
                "use_mask_token": True, "hidden_act": "relu",
            },
            text={"model_type": "qwen3", "tie_word_embeddings": True},
            processor=GOT_OCR2, picture=grids(28, 28, 4, min_patches=2, crop_to_patches=True, resample=2),
            outer={"downsample_ratio": 0.25, "projector_hidden_act": "gelu_pytorch_tanh"},
            file={"image_seq_length": 1},
        ),
        "other sizes": Model(
            # tiles of 42 pixels over a table of 4 x 4 positions, and states before the last block
            vision={"num_attention_heads": 2, "image_size": [28, 28], "patch_size": [7, 7]},
            text={"model_type": "qwen2"}, processor=GOT_OCR2,
            picture=grids(42, 42, 12, image_mean=[0.1, 0.2, 0.3], image_std=[0.9, 0.8, 0.7]),
            outer={"vision_feature_layer": -2, "tie_word_embeddings": False}, file={"image_seq_length": 9},
        ),
    },
    "llava_pixtral": {
        "patches": Model(
            vision=PIXTRAL_TOWER, text={"model_type": "mistral"}, processor=PIXTRAL_PICTURES,
            picture=edge(56, patch_size=7), outer=FULL_LAST, file=PIXTRAL_FILE | {"patch_size": 7},
        ),
        "odd": Model(
            # heads of 12, patches of 10 pixels, and states before the last block
            vision=PIXTRAL_TOWER | {"num_attention_heads": 2, "patch_size": 10, "hidden_act": "silu"},
            text={"model_type": "mistral", "sliding_window": 9, "tie_word_embeddings": True},
            processor=PIXTRAL_PICTURES, picture=edge(75, patch_size=10, resample=2),
            outer={"vision_feature_layer": -2, "vision_feature_select_strategy": "full",
                   "multimodal_projector_bias": False, "tie_word_embeddings": True},
            file=PIXTRAL_FILE | {"patch_size": 10},
        ),
        "layers": Model(
            vision=PIXTRAL_TOWER | {"num_hidden_layers": 1, "rope_parameters": {"rope_theta": 100.0}},
            text={"num_key_value_heads": 5}, processor=PIXTRAL_PICTURES,
            picture=edge(42, patch_size=7, image_mean=[0.1, 0.2, 0.3], image_std=[0.9, 0.8, 0.7]),
            outer=FULL_LAST | {"projector_hidden_act": "relu"}, file=PIXTRAL_FILE | {"patch_size": 7},
        ),
    },
    "lighton_ocr": {
        "squares": Model(
            vision=PIXTRAL_TOWER, text=QWEN3_PLAIN, processor=PIXTRAL_PICTURES, picture=edge(70, patch_size=14),
            file={"patch_size": 7, "spatial_merge_size": 2},
        ),
        "of nine": Model(
            vision=PIXTRAL_TOWER | {"num_attention_heads": 1, "patch_size": 5, "hidden_act": "silu"},
            text=QWEN3_PLAIN | {"rms_norm_eps": 1e-2}, processor=PIXTRAL_PICTURES, picture=edge(100, patch_size=15),
            outer={"spatial_merge_size": 3, "tie_word_embeddings": False},
            file={"patch_size": 5, "spatial_merge_size": 3},
        ),
        "patches": Model(
            vision=PIXTRAL_TOWER | {"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}},
            text=QWEN3_PLAIN | {"num_key_value_heads": 5}, processor=PIXTRAL_PICTURES,
            picture=edge(50, patch_size=7, resample=2), outer={"spatial_merge_size": 1},
            file={"patch_size": 7, "spatial_merge_size": 1},
        ),
    },
    "mistral3": {
        "squares": Model(
            vision=PIXTRAL_TOWER, text={"model_type": "mistral"}, processor=PIXTRAL_PICTURES,
            picture=edge(70, patch_size=14), outer={"tie_word_embeddings": False},
            file=PIXTRAL_FILE | {"patch_size": 7, "spatial_merge_size": 2},
        ),
        "of nine": Model(
            vision=PIXTRAL_TOWER | {"num_attention_heads": 2, "patch_size": 5, "hidden_act": "silu"},
            text={"model_type": "mistral", "rms_norm_eps": 1e-2, "sliding_window": 11},
            processor=PIXTRAL_PICTURES, picture=edge(100, patch_size=5, image_std=[0.3, 0.2, 0.1]),
            outer={"spatial_merge_size": 3, "multimodal_projector_bias": True, "projector_hidden_act": "relu"},
            file=PIXTRAL_FILE | {"patch_size": 5, "spatial_merge_size": 3},
        ),
        "ministral": Model(
            vision=PIXTRAL_TOWER | {"rope_parameters": {"rope_theta": 50.0, "rope_type": "axial"}},
            text={"model_type": "ministral3", "rope_parameters": YARN}, processor=PIXTRAL_PICTURES,
            picture=edge(50, patch_size=7), outer={"spatial_merge_size": 1, "vision_feature_layer": 2},
            file=PIXTRAL_FILE | {"patch_size": 7, "spatial_merge_size": 1},
        ),
    },
    "paddleocr_vl": {
        "squares": Model(
            vision=PADDLE_TOWER, text=PADDLE_TEXT | turned(1, 1, 2), processor=ROW_GRID,
            picture=pixels(14 * 14 * 4, 14 * 14 * 40, patch_size=7),
        ),
        "of nine": Model(
            vision=PADDLE_TOWER | {"patch_size": 5, "spatial_merge_size": 3, "image_size": 15, "hidden_act": "gelu"},
            text=PADDLE_TEXT | turned(2, 1, 1) | {"num_key_value_heads": 5}, processor=ROW_GRID,
            picture=pixels(15 * 15, 15 * 15 * 30, patch_size=5, merge_size=3, image_std=[0.3, 0.2, 0.1]),
        ),
        "untied": Model(
            vision=PADDLE_TOWER | {"num_attention_heads": 2, "image_size": 49}, outer={"tie_word_embeddings": False},
            text=PADDLE_TEXT | turned(3, 3, 2) | {"head_dim": 16, "tie_word_embeddings": False}, processor=ROW_GRID,
            picture=pixels(14 * 14 * 2, 14 * 14 * 33, patch_size=7, resample=2),
        ),
    },
    "paligemma": {
        "one": Model(
            text=GEMMA, vision=SIGLIP_TOWER, processor=SIGLIP, picture=fixed(28) | {"image_seq_length": 16},
            outer={"projection_dim": 40},
        ),
        "two with windows": Model(
            # shorter than a picture, and than a prompt
            text=GEMMA | {"model_type": "gemma2", "sliding_window": 7, "query_pre_attn_scalar": 11, "head_dim": 16,
                          "attn_logit_softcapping": 30.0, "final_logit_softcapping": 20.0, "num_hidden_layers": 3,
                          "num_attention_heads": 4, "num_key_value_heads": 2},
            vision=SIGLIP_TOWER | {"vision_use_head": False, "num_attention_heads": 2}, processor=SIGLIP,
            picture=fixed(28) | {"image_seq_length": 16}, outer={"projection_dim": 40},
        ),
        "odd heads": Model(
            text=GEMMA | {"head_dim": 12, "num_attention_heads": 3, "num_key_value_heads": 3},
            vision=SIGLIP_TOWER | {"image_size": 21}, processor=SIGLIP,
            picture=fixed(21) | {"image_seq_length": 9, "resample": 2}, outer={"projection_dim": 40},
        ),
    },
    "llava": {
        "clip": Model(
            vision=CLIP_TOWER, processor=CLIP, picture=square(28),
            file={"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        ),
        "siglip": Model(
            vision=SIGLIP_TOWER, processor=SIGLIP, picture={"size": {"height": 28, "width": 28}},
            outer={"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
            file={"patch_size": 7, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0},
        ),
        "layers": Model(
            vision=CLIP_TOWER, text={"model_type": "qwen2", "tie_word_embeddings": True}, processor=LLAVA,
            picture=square(28),
            outer={
                "vision_feature_layer": [1, -1], "vision_feature_select_strategy": "full",
                "projector_hidden_act": "quick_gelu", "multimodal_projector_bias": False, "tie_word_embeddings": True,
            },
            file={"patch_size": 7, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 1},
        ),
    },
    "qwen2_vl": {
        "squares": Model(
            vision=QWEN2_TOWER, text=QWEN2_TEXT | turned(2, 3, 3), processor=GRID,
            picture=pixels(14 * 14 * 4, 14 * 14 * 40, patch_size=7),
        ),
        "of nine": Model(
            vision={**QWEN2_TOWER, "embed_dim": 36, "patch_size": 5, "spatial_merge_size": 3, "temporal_patch_size": 1,
                    "hidden_act": "gelu"},
            text=QWEN2_TEXT | turned(1, 1, 2) | {"num_attention_heads": 6, "num_key_value_heads": 6,
                                                 "tie_word_embeddings": True},
            outer={"tie_word_embeddings": True}, processor=GRID,
            picture=pixels(15 * 15, 15 * 15 * 30, patch_size=5, merge_size=3, temporal_patch_size=1),
        ),
        "single patches": Model(
            vision={**QWEN2_TOWER, "embed_dim": 32, "num_heads": 2, "patch_size": 10, "spatial_merge_size": 1},
            text=QWEN2_TEXT | turned(1, 2, 3, 2) | {
                "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1,
            },
            processor=GRID, picture=pixels(100, 100 * 45, patch_size=10, merge_size=1, image_std=[0.3, 0.2, 0.1]),
        ),
    },
    "qwen2_5_vl": {
        "windows": Model(
            vision=QWEN2_5_TOWER, text=QWEN2_TEXT | turned(2, 3, 3) | {"model_type": "qwen2_5_vl_text"},
            processor=GRID, picture=pixels(14 * 14 * 4, 14 * 14 * 40, patch_size=7),
        ),
        "of one square": Model(
            vision={**QWEN2_5_TOWER, "window_size": 14, "fullatt_block_indexes": [0, 2], "hidden_act": "gelu"},
            text=QWEN2_TEXT | turned(1, 1, 2) | {"num_attention_heads": 6, "model_type": "qwen2_5_vl_text"},
            processor=GRID, picture=pixels(14 * 14 * 2, 14 * 14 * 33, patch_size=7),
        ),
        "of nine": Model(
            vision={**QWEN2_5_TOWER, "patch_size": 5, "spatial_merge_size": 3, "window_size": 31,
                    "fullatt_block_indexes": [], "num_heads": 1},
            text=QWEN2_TEXT | turned(2, 3, 3) | {"model_type": "qwen2_5_vl_text", "tie_word_embeddings": True},
            outer={"tie_word_embeddings": True}, processor=GRID,
            picture=pixels(15 * 15, 15 * 15 * 30, patch_size=5, merge_size=3, do_convert_rgb=False),
        ),
    },
    "qwen3_vl": qwen3_vl(QWEN3_TEXT),
    "qwen3_vl_moe": qwen3_vl(QWEN3_MOE_TEXT),
    "qwen3_5": qwen3_5(QWEN3_5_TEXT),
    "qwen3_5_moe": qwen3_5(QWEN3_5_MOE_TEXT),
}  # fmt: skip

MODELS["gemma4"] = {
    "clamped": Model(
        vision=GEMMA4_TOWER | {"use_clipped_linears": True}, text=GEMMA4_TEXT, processor=GEMMA4,
        picture={"patch_size": 3, "max_soft_tokens": 70},
    ),
    "standardized": Model(
        # heads of 12, two of one key, and what hears
        vision=GEMMA4_TOWER | {
            "standardize": True, "head_dim": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "patch_size": 4,
            "pooling_kernel_size": 2, "rope_parameters": {"rope_type": "axial", "rope_theta": 30.0},
        },
        text=GEMMA4_TEXT | {
            "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True,
            "final_logit_softcapping": 3.0,
        },
        processor=GEMMA4, picture={"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70, "resample": 2},
        outer={"tie_word_embeddings": False, "audio_config": {
            "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 12,
        }},
    ),
    "large": Model(
        vision=GEMMA4_TOWER | {"pooling_kernel_size": 2, "patch_size": 5, "hidden_activation": "silu",
                               "position_embedding_size": 280, "num_hidden_layers": 3},
        text=GEMMA4_TEXT | {"use_double_wide_mlp": True, "pad_token_id": 7},
        processor=GEMMA4, picture={"patch_size": 5, "pooling_kernel_size": 2, "max_soft_tokens": 140},
        file={"image_seq_length": 140},
    ),
    "blocks": Model(
        vision=GEMMA4_TOWER | {"use_clipped_linears": True, "standardize": True},
        text=GEMMA4_TEXT | {
            "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0,
            "use_bidirectional_attention": "vision",
        },
        processor=GEMMA4, picture={"patch_size": 3, "max_soft_tokens": 70},
    ),
}  # fmt: skip

UNIFIED_TOWER = {
    "patch_size": 3, "pooling_kernel_size": 3, "mm_embed_dim": 24, "output_proj_dims": 24, "mm_posemb_size": 144,
}  # fmt: skip
UNIFIED_TEXT = {
    "model_type": "gemma4_unified_text", "head_dim": 16, "global_head_dim": 32, "sliding_window": 9,
    "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}  # fmt: skip
UNIFIED = "Gemma4UnifiedImageProcessor"
MODELS["gemma4_unified"] = {
    "blocks": Model(
        vision=UNIFIED_TOWER, text=UNIFIED_TEXT, processor=UNIFIED, picture={"patch_size": 3, "max_soft_tokens": 70},
    ),
    "keys as values": Model(
        vision=UNIFIED_TOWER | {"patch_size": 5, "pooling_kernel_size": 2, "rms_norm_eps": 1e-3},
        text=UNIFIED_TEXT | {"attention_k_eq_v": True, "final_logit_softcapping": 3.0},
        processor=UNIFIED, picture={"patch_size": 5, "pooling_kernel_size": 2, "max_soft_tokens": 140, "resample": 2},
        outer={"tie_word_embeddings": False},
    ),
    "causal": Model(
        # with single patches, and what hears
        vision=UNIFIED_TOWER | {"pooling_kernel_size": 1, "mm_embed_dim": 20, "output_proj_dims": 20},
        text=UNIFIED_TEXT | {
            "use_bidirectional_attention": None, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True, "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        processor=UNIFIED, picture={"patch_size": 3, "pooling_kernel_size": 1, "max_soft_tokens": 70},
        outer={"audio_config": {"audio_embed_dim": 12}},
    ),
}  # fmt: skip

MODELS["vipllava"] = {
    "layers": replace(
        MODELS["llava"]["clip"], outer={"vision_feature_layers": [-2, 1], "projector_layernorm_eps": 1e-3},
    ),
    "one layer": replace(MODELS["llava"]["clip"], outer={"vision_feature_layers": -1}),
    "others": replace(
        MODELS["llava"]["clip"], vision=CLIP_TOWER | {"num_attention_heads": 2}, text={"num_key_value_heads": 5},
        outer={"vision_feature_layers": [3, 0, 2], "projector_hidden_act": "relu"},
    ),
}  # fmt: skip


@cache
def tokenizer() -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer that has a token for two line breaks."""
    return byte_level_tokenizer(SPECIAL)


def beginning() -> tokenizers.Tokenizer:
    """Return the tokenizer that begins texts with a token."""
    made = tokenizers.Tokenizer.from_str(tokenizer().to_str())
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def save(model_type: str, name: str, folder: Any) -> Any:
    """Save a seeded random model with its processor and tokenizer; return transformers' module in float64."""
    row = MODELS[model_type][name]
    torch.manual_seed(sum(map(ord, model_type + name)))
    tower = {} if model_type in (*QWEN, *PIXTRAL, "gemma4", "gemma4_unified", "lighton_ocr") else TOWER
    indexed = model_type in ("gemma3", "mistral3", "paligemma") or "llava" in model_type
    token = "image_token_index" if indexed else "image_token_id"
    tokens = {token: SPECIAL.index(STATES.get(model_type, "<image>"))}
    if model_type in QWEN:
        names, marks = ("video", "vision_start", "vision_end"), ("<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
        tokens |= {f"{name}_token_id": SPECIAL.index(mark) for name, mark in zip(names, marks, strict=True)}
    options = {"vision_config": tower | row.vision, "text_config": TEXT | row.text, **tokens, **row.outer}
    kind = transformers.CONFIG_MAPPING["llava" if model_type == "llava_pixtral" else model_type]
    model = transformers.AutoModelForImageTextToText.from_config(kind(**options))
    randomize(model, ("visual", "vision", "connector", "projector"))
    with torch.no_grad():
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith(("_min", "_max")):  # bounds that hide some of what a layer reads and returns
                buffer.copy_((1.0 if buffer_name.endswith("_max") else -1.0) * (0.5 + torch.rand(())))
            elif buffer_name.endswith(("std_bias", "std_scale", "layer_scalar")):
                buffer.copy_(0.5 + torch.rand(buffer.shape))
    model.save_pretrained(folder)
    fast = saved_tokenizer(
        beginning() if name == "begins" else tokenizer(), SPECIAL, extra_special_tokens=NAMED_TOKENS.get(model_type, {})
    )
    fast.chat_template = TEMPLATE.replace("<image>", MARKS.get(model_type, "<image>"))
    fast.save_pretrained(folder)
    if isinstance(row.processor, str):  # one that needs torchvision to be made
        file = {"image_processor_type": row.processor, **row.picture}
        (folder / "preprocessor_config.json").write_text(json.dumps(file))
    else:
        row.processor(**row.picture).save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(row.file))
    return reloaded(transformers.AutoModelForImageTextToText, folder, experts_implementation="eager")
