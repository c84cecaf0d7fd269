"""SigLIP: its tower of pictures, with a classifier or with its attention-pooling head.

Source: transformers/models/siglip/modeling_siglip.py.
"""

from edgeformer.config import VisionConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import OTHER_HALF, POSITION_IDS, inner_fields, read_class, read_classifier
from edgeformer.families.siglip_vision_model import DEFAULTS, TENSORS, read_siglip_tower


def read_config(fields: Fields, context_length: int | None) -> VisionConfig:
    """Read a SigLIP config.json."""
    fields.ignore("initializer_factor", "text_config")
    tower = inner_fields(fields, DEFAULTS, "siglip_vision_model")
    classified = read_class(fields, {"SiglipVisionModel": False, "SiglipForImageClassification": True})
    config = read_siglip_tower(tower, context_length, read_classifier(fields, "all") if classified else None)
    tower.finish()
    return config


FAMILY = Family(
    summary="SigLIP's tower of pictures; labels of pictures, vectors of pictures",
    read_config=read_config,
    tensors=TENSORS,
    optional_prefix="vision_model.",
    ignored_tensors=(*OTHER_HALF, r"vision_model\.head\..*"),
    computed_tensors=POSITION_IDS,
)
