"""The models that every family of towers is tested with: random ones of transformers' classes, with varied options.

TOWERS[model_type] holds the class of each model, options of its config, and those of its image processor.
"""

from dataclasses import dataclass, field
from typing import Any

import transformers

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
}  # fmt: skip
MLP = SIZES | {"intermediate_size": 48}
TEXT = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40,
}  # fmt: skip
SQUARE = {"size": {"height": 32, "width": 32}}
CROPPED = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}

NAFLEX = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "patch_size": 5,
    "num_patches": 16,
}  # fmt: skip
BUDGET = {"patch_size": 5, "max_num_patches": 30}
VIT, DEIT = transformers.ViTImageProcessorPil, transformers.DeiTImageProcessorPil
CLIP, SIGLIP, BIT = (
    transformers.CLIPImageProcessorPil,
    transformers.SiglipImageProcessorPil,
    transformers.BitImageProcessorPil,
)

SIGLIP2 = transformers.Siglip2ImageProcessorPil
SHAPES = ((30, 50), (71, 20), (13, 90))
"""Height and width of the pictures of each model."""
INPUTS = ("pixel_values", "pixel_attention_mask", "spatial_shapes")


def inputs_of(processor, pictures):
    """Return what transformers' processor makes of pictures, by name: floats in float64, and other numbers in int64."""
    found = processor(pictures, return_tensors="pt")
    read = {name: found[name] for name in INPUTS if name in found}
    return {name: each.double() if each.is_floating_point() else each.long() for name, each in read.items()}


@dataclass(frozen=True)
class Tower:
    """A random model: transformers' class, options of its config, its processor."""

    kind: str
    options: dict[str, Any]
    processor: type = VIT
    picture: dict[str, Any] = field(default_factory=lambda: SQUARE)


def wide(columns, rows):
    """Return the options of a processor that cuts pictures of this size."""
    return {"size": {"shortest_edge": max(rows, columns)}, "crop_size": {"height": rows, "width": columns}}


TOWERS = {
    "vit": {
        "pooled": Tower("ViTModel", MLP | {"pooler_output_size": 12, "num_attention_heads": 2}),
        "labels": Tower("ViTForImageClassification", MLP | {"num_labels": 5, "qkv_bias": False, "patch_size": 16}),
        "wide": Tower(
            "ViTForImageClassification",
            MLP | {"image_size": [24, 40], "hidden_act": "gelu_new", "layer_norm_eps": 1e-2},
            picture={"size": {"height": 24, "width": 40}},
        ),
    },
    "deit": {
        "pooled": Tower("DeiTModel", MLP, DEIT, CROPPED | {"size": {"height": 36, "width": 36}}),
        "labels": Tower("DeiTForImageClassification", MLP | {"num_labels": 3, "hidden_act": "relu"}),
        "teacher": Tower("DeiTForImageClassificationWithTeacher", MLP | {"num_labels": 4, "num_hidden_layers": 3}),
    },
    "dinov2": {
        "pooled": Tower("Dinov2Model", SIZES | {"patch_size": 7}, BIT, wide(28, 28)),
        "interpolated": Tower("Dinov2Model", SIZES, BIT, wide(24, 40)),
        "gated": Tower("Dinov2Model", SIZES | {"use_swiglu_ffn": True, "mlp_ratio": 3}, BIT, wide(48, 48)),
        "labels": Tower("Dinov2ForImageClassification", SIZES | {"num_labels": 3, "qkv_bias": False}, BIT, CROPPED),
    },
    "clip_vision_model": {
        "pooled": Tower("CLIPVisionModel", MLP, CLIP, CROPPED),
        "projected": Tower("CLIPVisionModelWithProjection", MLP | {"projection_dim": 12}, CLIP, CROPPED),
        "gelu": Tower("CLIPVisionModelWithProjection", MLP | {"hidden_act": "gelu", "patch_size": 16}, CLIP, CROPPED),
    },
    "clip": {
        "labels": Tower("CLIPForImageClassification", {"vision_config": MLP, "text_config": TEXT}, CLIP, CROPPED),
        "more labels": Tower(
            "CLIPForImageClassification",
            {"vision_config": MLP | {"num_attention_heads": 2}, "text_config": TEXT, "num_labels": 4}, CLIP, CROPPED,
        ),
        "patches of 16": Tower(
            "CLIPForImageClassification",
            {"vision_config": MLP | {"patch_size": 16}, "text_config": TEXT, "num_labels": 1}, CLIP, CROPPED,
        ),
    },
    "siglip2": {
        "labels": Tower(
            "Siglip2ForImageClassification", {"vision_config": NAFLEX, "text_config": TEXT}, SIGLIP2, BUDGET
        ),
        "more labels": Tower(
            "Siglip2ForImageClassification",
            {"vision_config": NAFLEX | {"hidden_act": "gelu", "num_patches": 9}, "text_config": TEXT, "num_labels": 4},
            SIGLIP2, BUDGET | {"max_num_patches": 12},
        ),
        "patches of 3": Tower(
            "Siglip2ForImageClassification",
            {"vision_config": NAFLEX | {"patch_size": 3}, "text_config": TEXT, "num_labels": 3}, SIGLIP2,
            {"patch_size": 3, "max_num_patches": 65, "resample": 3},
        ),
    },
    "siglip2_vision_model": {
        "pooled": Tower("Siglip2VisionModel", NAFLEX, SIGLIP2, BUDGET),
        "two heads": Tower(
            "Siglip2VisionModel", NAFLEX | {"num_attention_heads": 2, "layer_norm_eps": 1e-2, "num_patches": 49},
            SIGLIP2, BUDGET | {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7]},
        ),
        "states": Tower(
            "Siglip2VisionModel", NAFLEX | {"vision_use_head": False, "patch_size": 4, "num_patches": 1}, SIGLIP2,
            {"patch_size": 4, "max_num_patches": 45},
        ),
    },
    "siglip_vision_model": {
        "pooled": Tower("SiglipVisionModel", MLP, SIGLIP),
        "two heads": Tower("SiglipVisionModel", MLP | {"num_attention_heads": 2, "layer_norm_eps": 1e-2}, SIGLIP),
        "states": Tower("SiglipVisionModel", MLP | {"vision_use_head": False, "patch_size": 16}, SIGLIP),
    },
    "siglip": {
        "labels": Tower("SiglipForImageClassification", {"vision_config": MLP, "text_config": TEXT}, SIGLIP),
        "more labels": Tower(
            "SiglipForImageClassification",
            {"vision_config": MLP | {"hidden_act": "gelu"}, "text_config": TEXT, "num_labels": 4}, SIGLIP,
        ),
        "patches of 16": Tower(
            "SiglipForImageClassification",
            {"vision_config": MLP | {"patch_size": 16}, "text_config": TEXT, "num_labels": 3}, SIGLIP,
        ),
    },
}  # fmt: skip
