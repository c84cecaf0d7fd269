"""Write a checkpoint that sees, of a published geometry, with seeded random weights: model, processor and tokenizer.

    python tools/checkpoints/random_vision.py smolvlm-500m /tmp/smolvlm-500m

Sizes are those of the published config.json files of SmolVLM-500M-Instruct, LFM2-VL-450M, Qwen3-VL-2B-Instruct,
gemma-3-4b-it and ModernVBERT, an encoder. The tokenizer has the model's special tokens, byte-level BPE of a few
thousand merges that Python's help trains, so that a question has about as many tokens as words, and tokens that mean
nothing up to the vocabulary's size.
"""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from presets.tokenizer import train_tokenizer

READ_TOKENS, SHARD = 4096, "1GB"
"""Tokens that texts become, and the size of files of weights, of which one is in memory beside the model."""

HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""Mean and deviation of the pixels of all of them."""

PARTS = (
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}PICTURE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}"
)
TURNS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}" + PARTS + "{{ '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ASKED = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize + ':' }}" + PARTS + "<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
GEMMA_TURNS = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\\n' }}" + PARTS
    + "{{ '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)  # fmt: skip


def squares(pattern: str, side: int) -> list[str]:
    """Return the names of the tiles of a grid."""
    return [pattern.format(row, column) for row in range(1, side + 1) for column in range(1, side + 1)]


def smolvlm() -> tuple[Any, dict[str, Any], dict[str, Any], str]:
    """Return the config, the processor's file, the tokenizer's names and the template of SmolVLM-500M."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<image>"]
    special += ["<end_of_utterance>", "<global-img>", *squares("<row_{}_col_{}>", 6)]
    text = {
        "model_type": "llama", "vocab_size": 49280, "hidden_size": 960, "intermediate_size": 2560, "head_dim": 64,
        "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "rope_theta": 100000.0,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 5, "pad_token_id": 2,
    }  # fmt: skip
    tiles = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    vision = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 512, "patch_size": 16, **tiles,
    }  # fmt: skip
    config = transformers.SmolVLMConfig(
        text_config=text, vision_config=vision, scale_factor=4, image_token_id=special.index("<image>"), pad_token_id=2
    )
    file = {"image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": True, "do_pad": True, "resample": 1}
    names = {"bos_token": "<|im_start|>", "eos_token": "<end_of_utterance>", "pad_token": "<|im_end|>"}
    return config, file | tiles, {"special": special, **names}, ASKED.replace("PICTURE", "<image>")


def lfm2_vl() -> tuple[Any, dict[str, Any], dict[str, Any], str]:
    """Return the same of LFM2-VL-450M."""
    special = ["<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"]
    special += ["<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *squares("<|img_row_{}_col_{}|>", 10)]
    text = {
        "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 1024, "intermediate_size": 6656,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "conv_L_cache": 3,
        "max_position_embeddings": 128000, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "bos_token_id": 1, "eos_token_id": 4, "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "model_type": "siglip2_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "num_patches": 256, "patch_size": 16, "vision_use_head": False,
    }  # fmt: skip
    config = transformers.Lfm2VlConfig(
        text_config=text, vision_config=vision, image_token_id=special.index("<image>"), projector_hidden_size=2560,
        downsample_factor=2, tie_word_embeddings=True,
    )  # fmt: skip
    file = {
        "image_processor_type": "Lfm2VlImageProcessor", "resample": 2, "downsample_factor": 2, "tile_size": 512,
        "do_image_splitting": True, "min_tiles": 2, "max_tiles": 10, "use_thumbnail": True, "min_image_tokens": 64,
        "max_image_tokens": 256, "encoder_patch_size": 16, "max_num_patches": 1024, "max_pixels_tolerance": 2.0,
        "do_pad": True, "return_row_col_info": True, "size": {"height": 512, "width": 512},
    }  # fmt: skip
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    return config, file, {"special": special, **names}, "{{ bos_token }}" + TURNS.replace("PICTURE", "<image>")


def qwen3_vl() -> tuple[Any, dict[str, Any], dict[str, Any], str]:
    """Return the same of Qwen3-VL-2B."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"]
    special += ["<|image_pad|>", "<|video_pad|>"]
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    text = {
        "model_type": "qwen3_vl_text", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_parameters": rope, "eos_token_id": 2,
        "tie_word_embeddings": True,
    }  # fmt: skip
    vision = {
        "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17],
    }  # fmt: skip
    ids = {f"{part}_token_id": special.index(f"<|{part}_pad|>") for part in ("image", "video")}
    ids |= {f"vision_{end}_token_id": special.index(f"<|vision_{end}|>") for end in ("start", "end")}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    file = {
        "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2, "resample": 3,
        "temporal_patch_size": 2, "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    }  # fmt: skip
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    marks = "<|vision_start|><|image_pad|><|vision_end|>"
    return config, file, {"special": special, **names}, TURNS.replace("PICTURE", marks)


def gemma3() -> tuple[Any, dict[str, Any], dict[str, Any], str]:
    """Return the same of Gemma 3 4B."""
    marks = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", *marks.values()]
    local, full = {"rope_type": "default", "rope_theta": 1e4}, {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    text = {
        "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "query_pre_attn_scalar": 256, "sliding_window": 1024, "max_position_embeddings": 131072,
        "rope_parameters": {"sliding_attention": local, "full_attention": full},
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 896, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    tokens = {name.replace("token", "token_index"): special.index(mark) for name, mark in marks.items()}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=256, eos_token_id=[1, 5], **tokens
    )
    file = {
        "image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 256, "resample": 2,
        "size": {"height": 896, "width": 896},
    }  # fmt: skip
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "extra_special_tokens": marks}
    return config, file, {"special": special, **names}, GEMMA_TURNS.replace("PICTURE", "<start_of_image>")


def modernvbert() -> tuple[Any, dict[str, Any], dict[str, Any], str]:
    """Return the same of ModernVBERT, which has ModernBERT's 50,368 tokens and 40 for pictures.

    The fields are those of the hub's modernvbert-embed, with the names that transformers' class has for them.
    """
    special = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "<fake_token_around_image>", "<image>"]
    special += ["<end_of_utterance>", "<global-img>", *squares("<row_{}_col_{}>", 6)]
    text = {
        "model_type": "modernbert", "vocab_size": 50408, "hidden_size": 768, "intermediate_size": 1152,
        "num_hidden_layers": 22, "num_attention_heads": 12, "max_position_embeddings": 8192, "local_attention": 128,
        "bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 1, "sep_token_id": 1, "pad_token_id": 2,
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 512, "patch_size": 16,
    }  # fmt: skip
    config = transformers.ModernVBertConfig(
        text_config=text, vision_config=vision, pixel_shuffle_factor=4, image_token_id=special.index("<image>")
    )
    file = {
        "image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": True, "do_pad": True, "resample": 1,
        "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512},
    }  # fmt: skip
    names = {
        "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]",
        "mask_token": AddedToken("[MASK]", lstrip=True, normalized=False, special=True), "model_max_length": 8192,
        "model_input_names": ["input_ids", "attention_mask", "pixel_values", "pixel_attention_mask"],
    }  # fmt: skip
    template = ASKED.removeprefix("<|im_start|>").replace("PICTURE", "<image>")
    return config, file, {"special": special, **names}, template


GEOMETRIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "smolvlm-500m": (
        smolvlm, transformers.SmolVLMForConditionalGeneration,
        {"processor_class": "SmolVLMProcessor", "image_seq_len": 64},
    ),
    "lfm2-vl-450m": (lfm2_vl, transformers.Lfm2VlForConditionalGeneration, {"processor_class": "Lfm2VlProcessor"}),
    "qwen3-vl-2b": (qwen3_vl, transformers.Qwen3VLForConditionalGeneration, {"processor_class": "Qwen3VLProcessor"}),
    "gemma3-4b": (gemma3, transformers.Gemma3ForConditionalGeneration, {"processor_class": "Gemma3Processor"}),
    "modernvbert": (
        modernvbert, transformers.ModernVBertForMaskedLM,
        {"processor_class": "Idefics3Processor", "image_seq_len": 64},
    ),
}  # fmt: skip
"""The function of each geometry, transformers' class, and the content of processor_config.json."""


def write_tokenizer(folder: Path, size: int, special: list[str], **names: Any) -> None:
    """Write a tokenizer of special tokens, bytes, merges, and tokens without a meaning; an encoder's frames texts."""
    trained = train_tokenizer((topics[name] for name in sorted(topics)), len(special) + READ_TOKENS, special)
    content = json.loads(trained.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"<unused{token}>": token for token in range(len(vocabulary), size)}
    made = Tokenizer.from_str(json.dumps(content))
    if "cls_token" in names:
        first, last = names["cls_token"], names["sep_token"]
        ids = [(name, vocabulary[name]) for name in (first, last)]
        made.post_processor = TemplateProcessing(single=f"{first} $A {last}", special_tokens=ids)
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)


def write_reader(name: str, folder: Path) -> Any:
    """Write the tokenizer, the template and the processor, and return the model's config."""
    geometry, _, processor_file = GEOMETRIES[name]
    config, file, tokens, template = geometry()
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, config.text_config.vocab_size, **tokens)
    pixels = {"do_convert_rgb": True, "do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255}
    pixels |= {"do_normalize": True, **HALVES, **file}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels, indent=1), encoding="utf-8")
    (folder / "processor_config.json").write_text(json.dumps(processor_file), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return config


def write(name: str, folder: Path) -> None:
    """Write a checkpoint in bfloat16."""
    config = write_reader(name, folder)
    torch.manual_seed(0)
    GEOMETRIES[name][1]._from_config(config, dtype=torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in GEOMETRIES:
        sys.exit(f"{__doc__}\nGeometries: {', '.join(GEOMETRIES)}")
    write(sys.argv[1], Path(sys.argv[2]))
