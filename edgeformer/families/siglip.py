"""SigLIP, and SigLIP 2 of fixed resolution: texts and pictures in one space, or the tower of pictures alone.

Source: transformers/models/siglip/modeling_siglip.py.
"""

from typing import Any

from edgeformer.config import (
    DualEncoderConfig,
    EncoderConfig,
    PictureTower,
    TextVectorHead,
    VisionConfig,
)
from edgeformer.errors import ConfigError
from edgeformer.families._dual import dual_tensors, join, read_text_half
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import OTHER_HALF, POSITION_IDS, inner_fields, read_class, read_classifier
from edgeformer.families.siglip_vision_model import DEFAULTS, TENSORS, read_siglip_tower

TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "max_position_embeddings": 64, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
}  # fmt: skip


def read_config(fields: Fields, context_length: int | None) -> VisionConfig | DualEncoderConfig:
    """Read a SigLIP config.json."""
    fields.ignore("initializer_factor", "text_config")
    tower = inner_fields(fields, DEFAULTS, "siglip_vision_model")
    classes = {"SiglipModel": "both", "SiglipVisionModel": "tower", "SiglipForImageClassification": "labels"}
    wanted = read_class(fields, classes, "SiglipModel")
    classifier = read_classifier(fields, "all") if wanted == "labels" else None
    vision = read_siglip_tower(tower, context_length, classifier)
    tower.finish()
    if wanted != "both":
        return vision
    return read_both(fields, context_length, vision, "siglip_text_model")


def read_both(fields: Fields, context_length: int | None, vision: PictureTower, model_type: str) -> DualEncoderConfig:
    """Read the half of texts, whose model_type is given, and join it to that of pictures."""
    text = inner_fields(fields, TEXT_DEFAULTS, model_type, "text")
    if context_length not in (None, text.take("max_position_embeddings")):
        raise ConfigError("SigLIP pads every text to all positions that the model has; leave context_length out.")
    config = join(_read_text(text), vision, "sigmoid", biased=True, padded=True)
    text.finish()
    return config


def _read_text(fields: Fields) -> EncoderConfig:
    size = fields.take("projection_size", fields.take("hidden_size"))
    head = TextVectorHead(output="pooler_output", size=size, bias=True, place="last")
    return read_text_half(fields, None, causal=False, head=head)


FAMILY = Family(
    summary="SigLIP, SigLIP 2 of fixed resolution; texts against pictures, and the tower alone",
    read_config=read_config,
    tensors=dual_tensors(TENSORS, "text_model.head"),
    optional_prefix="vision_model.",
    ignored_tensors=(*OTHER_HALF, r"vision_model\.head\..*"),
    computed_tensors=POSITION_IDS,
)
