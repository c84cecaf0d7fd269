"""The tower of pictures of CLIP, by itself.

Source: transformers/models/clip/modeling_clip.py.
"""

from typing import Any

from edgeformer.config import PictureClassifier, TokenPooler, VisionConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import (
    OTHER_HALF,
    POSITION_IDS,
    clip_tensors,
    read_class,
    read_feed_forward,
    read_norm,
    read_tower,
)

DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "projection_dim": 512, "num_hidden_layers": 12,
    "num_attention_heads": 12, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip


def read_config(fields: Fields, context_length: int | None) -> VisionConfig:
    """Read the config.json of a tower."""
    projects = {"CLIPVisionModel": False, "CLIPVisionModelWithProjection": True}
    projection = fields.take("projection_dim")
    projected = read_class(fields, projects, "CLIPVisionModel")
    return read_clip_tower(fields, context_length, projection if projected else None)


def read_clip_tower(
    fields: Fields, context_length: int | None, projection: int | None, classifier: PictureClassifier | None = None
) -> VisionConfig:
    """Read a tower; projection: size of image_embeds. One with a classifier pools nothing else."""
    return read_tower(
        fields,
        context_length,
        prefix_tokens=1,
        feed_forward=read_feed_forward(fields),
        patch_bias=False,
        embedding_norm=True,
        final_norm=False,  # only the pooled state is normalized
        outputs=(TokenPooler(norm=read_norm(fields)) if classifier is None else None, classifier),
        projection=projection,
    )


TENSORS = clip_tensors(
    ("prefix.0", "vision_model.embeddings.class_embedding"),
    ("embedding_norm", "vision_model.pre_layrnorm"),
    ("pooler.norm", "vision_model.post_layernorm"),
    ("projection", "visual_projection"),
)

FAMILY = Family(
    summary="CLIP's tower of pictures; vectors of pictures",
    read_config=read_config,
    tensors=TENSORS,
    defaults=DEFAULTS,
    optional_prefix="vision_model.",
    ignored_tensors=(*OTHER_HALF, r"visual_projection\.weight"),
    computed_tensors=POSITION_IDS,
)
