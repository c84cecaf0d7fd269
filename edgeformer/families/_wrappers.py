"""The table of models that hold a text model beside others: what is there, and what belongs to the other modalities.

Each entry was compared with transformers' module, run on text alone (tests/families/test_nested.py); logits that the
text model scales by itself (Cohere 2) are scaled, which transformers' modules of the whole leave out. A model whose
text model computes something else inside than by itself, on text alone, must not stand in `WRAPPERS`: PaliGemma's
prompts attend both ways (it is in `INSEPARABLE`), and Mllama's text layers attend to images.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The heads of a model of several, where its text model is an encoder that has heads by itself, too.

    Attributes:
        classes: how the names of transformers' classes begin, those of the whole and those of the text model.
        fields: fields of the whole config.json that describe a head; those of the text model's config are not read.
        modules: names of modules of a head of the whole, and what they are called in the text model by itself.
    """

    classes: tuple[str, str]
    fields: tuple[str, ...]
    modules: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """How a config.json of one `model_type` holds the config of its text model.

    Attributes:
        text: the text model's model_type, where config.json does not name it.
        place: the field that holds the text model's config. Without that field, the config.json is flat: the text
            model's fields stand beside those of the others.
        tied: default of tie_word_embeddings.
        defaults: values of fields that the text model's config lacks, where they are not those of its own type.
        fields: further fields of the other modalities, which `is_foreign` does not recognize.
        unread: fields of the whole config.json that nothing reads, whose names fields of the text model may have.
        inside: what its text model computes otherwise by itself.
        transposed: patterns of tensors that it stores transposed, unlike its text model by itself.
        heads: where its text model is an encoder; None for a decoder.
    """

    text: str
    place: str = "text_config"
    tied: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    inside: str = ""
    transposed: tuple[str, ...] = ()
    heads: Heads | None = None


LLAVA = ("ignore_index",)
"""Field of LLaVA and its successors that matters in training only."""
IDEFICS3 = ("_flash_attn_2_enabled", "_pad_token_id", "neftune_noise_alpha", "qk_layer_norms", "scale_factor")
"""Fields of Idefics3 and SmolVLM that generation of text does not read: of training, of vision, and a padding token."""
PADDLE = (
    "attention_probs_dropout_prob", "compression_ratio", "hidden_dropout_prob", "ignored_index", "max_sequence_length",
    "rope_is_neox_style", "use_3d_rope", "use_flash_attention", "weight_share_add_bias",
)  # fmt: skip
"""Fields of published files of PaddleOCR-VL that transformers does not read."""

WRAPPERS = {
    "aya_vision": Wrapper(text="cohere2", tied=True, fields=("adapter_layer_norm_eps", "downsample_factor")),
    "cohere2_vision": Wrapper(text="cohere2", tied=True, fields=("alignment_intermediate_size", "downsample_factor")),
    "deepseek_vl": Wrapper(text="llama", tied=True),
    "exaone4_5": Wrapper(text="exaone4"),
    "gemma3": Wrapper(text="gemma3_text", tied=True),
    "gemma3n": Wrapper(text="gemma3n_text", tied=True),
    "gemma4": Wrapper(text="gemma4_text", tied=True),
    "gemma4_unified": Wrapper(
        text="gemma4_unified_text", tied=True,
        defaults={"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
    ),
    "glm4v": Wrapper(text="glm4v_text", defaults={"head_dim": None}),
    "glmasr": Wrapper(text="llama", tied=True),
    "got_ocr2": Wrapper(text="qwen2", tied=True),
    "idefics2": Wrapper(text="mistral"),
    "idefics3": Wrapper(text="llama", fields=IDEFICS3),
    "internvl": Wrapper(text="qwen2", tied=True, fields=("downsample_ratio",)),
    "lfm2_vl": Wrapper(
        text="lfm2", tied=True, fields=("downsample_factor", "max_tiles", "min_tiles", "tile_size", "use_thumbnail")
    ),
    "lighton_ocr": Wrapper(text="qwen3", tied=True, fields=("spatial_merge_size",)),
    "llama4": Wrapper(text="llama4_text"),
    "llava": Wrapper(text="llama", fields=LLAVA),
    "llava_next": Wrapper(text="llama", fields=LLAVA),
    "llava_next_video": Wrapper(text="llama", fields=(*LLAVA, "spatial_pool_mode", "spatial_pool_stride")),
    "llava_onevision": Wrapper(text="qwen2"),
    "mistral3": Wrapper(text="mistral", tied=True, fields=("spatial_merge_size",)),
    "modernvbert": Wrapper(
        text="modernbert",
        unread=("classifier_bias", "classifier_dropout", "initializer_cutoff_factor"),
        heads=Heads(
            classes=("ModernVBert", "ModernBert"),
            fields=("classifier_pooling", "id2label", "label2id", "num_labels", "problem_type"),
            modules={"projection_head": "head", "lm_head": "decoder"},
        ),
    ),
    "paddleocr_vl": Wrapper(text="paddleocr_vl_text", tied=True, fields=PADDLE),
    "qwen2_5_omni": Wrapper(text="qwen2_5_omni_thinker", place="thinker_config"),
    "qwen2_5_omni_thinker": Wrapper(
        text="qwen2_5_omni_text", fields=("position_id_per_seconds", "seconds_per_chunk", "user_token_id")
    ),
    "qwen2_5_vl": Wrapper(text="qwen2_5_vl_text"),
    "qwen2_audio": Wrapper(text="qwen2"),
    "qwen2_vl": Wrapper(text="qwen2_vl_text"),
    "qwen3_5": Wrapper(text="qwen3_5_text"),
    "qwen3_5_moe": Wrapper(text="qwen3_5_moe_text"),
    "qwen3_vl": Wrapper(text="qwen3_vl_text"),
    "qwen3_vl_moe": Wrapper(
        text="qwen3_vl_moe_text", defaults={"norm_topk_prob": True},
        transposed=("*.experts.gate_up_proj", "*.experts.down_proj"),
    ),
    "smolvlm": Wrapper(text="llama", fields=IDEFICS3),
    "video_llava": Wrapper(text="llama", fields=LLAVA),
    "vipllava": Wrapper(text="llama", fields=LLAVA),
    "voxtral": Wrapper(
        text="llama",
        defaults={
            "vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e8,
            "head_dim": 128,
        },
    ),
}  # fmt: skip
"""Wrappers by the model_type of config.json."""

INSEPARABLE = {
    "paligemma": Wrapper(
        text="gemma", tied=True, fields=("use_bidirectional_attention",),
        unread=("_vocab_size", "hidden_size", "ignore_index", "vocab_size"),
        inside="its prompts attend both ways inside, and look back by themselves",
    ),
}  # fmt: skip
"""Models that are exported whole alone, because their text models compute something else by themselves."""

SAME_ON_TEXT = {
    "gemma4_unified_text": "gemma4_text",
    "glm4v_text": "glm4", "paddleocr_vl_text": "llama", "qwen2_5_omni_text": "qwen2", "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2", "qwen3_vl_moe_text": "qwen3_moe", "qwen3_vl_text": "qwen3",
}  # fmt: skip
"""Types of text models that compute on text what another family computes."""

WORDS = {
    "vision": {
        "boi", "eoi", "grid", "image", "images", "patch", "perceiver", "pixel", "resampler", "video", "vision",
        "visual", "vq", "vqmodel",
    },
    "audio": {"audio", "boa", "code2wav", "eoa", "sound", "speech", "talker", "token2wav"},
    "projection": {
        "adapter", "aligner", "ar", "connector", "merger", "mm", "modal", "multimodal", "projection", "projector",
        "qformer",
    },
}  # fmt: skip
"""Words of names, separated by underscores, of fields and modules of other modalities."""


def wrapper_of(model_type: str) -> Wrapper | None:
    """Return how a config.json holds the config of its text model; None where it holds none."""
    return WRAPPERS.get(model_type) or INSEPARABLE.get(model_type)


def encodes_text(data: Mapping[str, Any]) -> bool:
    """Return whether a config.json is one of a model of several whose text model is an encoder."""
    wrapper = wrapper_of(str(data.get("model_type")))
    return wrapper is not None and wrapper.heads is not None


def modality_of(name: str) -> str | None:
    """Return the modality that the name of a field or a module speaks of; None if it speaks of none."""
    words = set(re.split("_+", name.lower()))
    return next((modality for modality, known in WORDS.items() if words & known), None)


def is_foreign(field: str, wrapper: Wrapper) -> bool:
    """Return whether a field of a config.json belongs to another modality than text."""
    return field in wrapper.fields or modality_of(field) is not None
