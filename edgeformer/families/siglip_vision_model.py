"""The tower of pictures of SigLIP, by itself.

Source: transformers/models/siglip/modeling_siglip.py.
"""

from typing import Any

from edgeformer.config import AttentionPooler, PictureClassifier, VisionConfig
from edgeformer.families._family import Family, Fields, Packed
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
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    "vision_use_head": True,
}  # fmt: skip


def read_config(fields: Fields, context_length: int | None) -> VisionConfig:
    """Read the config.json of a tower."""
    read_class(fields, {"SiglipVisionModel": None}, "SiglipVisionModel")
    return read_siglip_tower(fields, context_length)


def read_siglip_tower(
    fields: Fields, context_length: int | None, classifier: PictureClassifier | None = None
) -> VisionConfig:
    """Read a tower. One with a classifier pools nothing else."""
    feed_forward = read_feed_forward(fields)
    pooler = AttentionPooler(
        num_heads=fields.take("num_attention_heads"), norm=read_norm(fields), feed_forward=feed_forward
    )
    pools = fields.take("vision_use_head") and classifier is None
    return read_tower(
        fields,
        context_length,
        prefix_tokens=0,
        feed_forward=feed_forward,
        outputs=(pooler if pools else None, classifier),
    )


HEAD = "vision_model.head"

TENSORS = clip_tensors(
    ("final_norm", "vision_model.post_layernorm"),
    ("pooler.probe", f"{HEAD}.probe"),
    ("pooler.output", f"{HEAD}.attention.out_proj"),
    ("pooler.norm", f"{HEAD}.layernorm"),
    ("pooler.feed_forward.up", f"{HEAD}.mlp.fc1"),
    ("pooler.feed_forward.down", f"{HEAD}.mlp.fc2"),
) | {
    f"pooler.{name}.{last}": Packed(f"{HEAD}.attention.in_proj_{last}", part)
    for part, name in enumerate(("query", "key", "value"))
    for last in ("weight", "bias")
}

FAMILY = Family(
    summary="SigLIP's tower of pictures, with its attention-pooling head; vectors of pictures",
    read_config=read_config,
    tensors=TENSORS,
    defaults=DEFAULTS,
    optional_prefix="vision_model.",
    ignored_tensors=OTHER_HALF,
    computed_tensors=POSITION_IDS,
)
