"""CLIP: texts and pictures in one space, or its tower of pictures, with a classifier or with the projection.

Source: transformers/models/clip/modeling_clip.py.
"""

from typing import Any

from edgeformer.config import DualEncoderConfig, EncoderConfig, TextVectorHead, VisionConfig
from edgeformer.families._dual import dual_tensors, join, read_text_half
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import OTHER_HALF, POSITION_IDS, inner_fields, read_class, read_classifier
from edgeformer.families.clip_vision_model import DEFAULTS, TENSORS, read_clip_tower

TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "projection_dim": 512, "num_hidden_layers": 12,
    "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}  # fmt: skip

WRONG_END = 2
"""End token in the config.json of the first checkpoints, whose texts end with another one: that of the largest id."""


def read_config(fields: Fields, context_length: int | None) -> VisionConfig | DualEncoderConfig:
    """Read a CLIP config.json."""
    fields.ignore("initializer_factor", "logit_scale_init_value", "text_config", "text_config_dict")
    tower, projection = inner_fields(fields, DEFAULTS, "clip_vision_model"), fields.take("projection_dim", 512)
    tower.ignore("projection_dim")
    classes = {"CLIPModel": "both", "CLIPVisionModelWithProjection": "tower", "CLIPForImageClassification": "labels"}
    wanted = read_class(fields, classes, "CLIPModel")
    classifier = read_classifier(fields, "patches") if wanted == "labels" else None
    vision = read_clip_tower(tower, context_length, None if wanted == "labels" else projection, classifier)
    tower.finish()
    if wanted != "both":
        return vision
    text = inner_fields(fields, TEXT_DEFAULTS, "clip_text_model", "text")
    config = join(_read_text(text, context_length, projection), vision, "softmax")
    text.finish()
    return config


def _read_text(fields: Fields, context_length: int | None, projection: int) -> EncoderConfig:
    fields.ignore("projection_dim")
    end = fields.take("eos_token_id")
    head = TextVectorHead(
        output="text_embeds", size=projection, bias=False, place="largest" if end == WRONG_END else "end",
        end=None if end == WRONG_END else end,
    )  # fmt: skip
    return read_text_half(fields, context_length, causal=True, head=head)


FAMILY = Family(
    summary="CLIP; texts against pictures, and its tower alone: labels of pictures, vectors of pictures",
    read_config=read_config,
    tensors=dual_tensors(TENSORS, "text_projection"),
    optional_prefix="vision_model.",
    ignored_tensors=(*OTHER_HALF, r"vision_model\.post_layernorm\.(weight|bias)", r"visual_projection\.weight"),
    computed_tensors=POSITION_IDS,
)
