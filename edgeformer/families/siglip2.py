"""SigLIP 2 of any resolution (NaFlex): texts and pictures in one space, or the tower of pictures alone.

SigLIP 2 of one resolution has model_type `siglip`. Source: transformers/models/siglip2/modeling_siglip2.py.
"""

from edgeformer.config import DualEncoderConfig, NaflexVisionConfig
from edgeformer.families._dual import dual_tensors
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import OTHER_HALF, POSITION_IDS, inner_fields, read_class, read_classifier
from edgeformer.families.siglip import read_both
from edgeformer.families.siglip2_vision_model import DEFAULTS, TENSORS, read_naflex_tower


def read_config(fields: Fields, context_length: int | None) -> NaflexVisionConfig | DualEncoderConfig:
    """Read a SigLIP 2 config.json."""
    fields.ignore("initializer_factor", "text_config")
    tower = inner_fields(fields, DEFAULTS, "siglip2_vision_model")
    classes = {"Siglip2Model": "both", "Siglip2VisionModel": "tower", "Siglip2ForImageClassification": "labels"}
    wanted = read_class(fields, classes, "Siglip2Model")
    vision = read_naflex_tower(tower, read_classifier(fields, "all") if wanted == "labels" else None)
    tower.finish()
    return vision if wanted != "both" else read_both(fields, context_length, vision, "siglip2_text_model")


FAMILY = Family(
    summary="SigLIP 2 of any resolution (NaFlex); texts against pictures, and the tower alone",
    read_config=read_config,
    tensors=dual_tensors(TENSORS, "text_model.head"),
    optional_prefix="vision_model.",
    ignored_tensors=(*OTHER_HALF, r"vision_model\.head\..*"),
    computed_tensors=POSITION_IDS,
)
