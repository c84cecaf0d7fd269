"""CLIP: its tower of pictures, with a classifier or with the projection into the space that texts share.

Source: transformers/models/clip/modeling_clip.py.
"""

from edgeformer.config import VisionConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import OTHER_HALF, POSITION_IDS, inner_fields, read_class, read_classifier
from edgeformer.families.clip_vision_model import DEFAULTS, TENSORS, read_clip_tower


def read_config(fields: Fields, context_length: int | None) -> VisionConfig:
    """Read a CLIP config.json."""
    fields.ignore("initializer_factor", "logit_scale_init_value", "text_config", "text_config_dict")
    fields.ignore("vision_config_dict")  # what `vision_config` was made of
    tower, projection = inner_fields(fields, DEFAULTS, "clip_vision_model"), fields.take("projection_dim", 512)
    tower.ignore("projection_dim")
    classes = {"CLIPVisionModelWithProjection": False, "CLIPForImageClassification": True}
    classified = read_class(fields, classes)
    classifier = read_classifier(fields, "patches") if classified else None
    config = read_clip_tower(tower, context_length, None if classified else projection, classifier)
    tower.finish()
    return config


FAMILY = Family(
    summary="CLIP's tower of pictures; labels of pictures, vectors of pictures",
    read_config=read_config,
    tensors=TENSORS,
    optional_prefix="vision_model.",
    ignored_tensors=(*OTHER_HALF, r"vision_model\.post_layernorm\.(weight|bias)", r"visual_projection\.weight"),
    computed_tensors=POSITION_IDS,
)
