"""ViT, vision transformer: classes of pictures, and vectors of them.

Source: transformers/models/vit/modeling_vit.py.
"""

from collections.abc import Callable
from typing import Any

from edgeformer.config import TokenPooler, VisionConfig
from edgeformer.families._encoder import HEAD_ACTIVATIONS
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import Outputs, read_class, read_classifier, read_feed_forward, read_tower, vit_tensors

DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 224, "patch_size": 16, "qkv_bias": True,
    "pooler_act": "tanh",
}  # fmt: skip
"""Defaults of transformers' config class, which are those of DeiT, too."""


def read_config(fields: Fields, context_length: int | None) -> VisionConfig:
    """Read a ViT config.json."""
    pooler = read_pooler(fields)
    heads: dict[str, Callable[[], Outputs]] = {
        "ViTModel": lambda: (pooler, None),
        "ViTForImageClassification": lambda: (None, read_classifier(fields, "first")),
    }
    return read_tower(
        fields,
        context_length,
        prefix_tokens=1,
        feed_forward=read_feed_forward(fields),
        qkv_bias=fields.take("qkv_bias"),
        outputs=read_class(fields, heads, "ViTModel")(),
    )


def read_pooler(fields: Fields) -> TokenPooler:
    """Read the pooler of the plain model."""
    return TokenPooler(
        dense=fields.choice("pooler_act", HEAD_ACTIVATIONS), size=fields.take("pooler_output_size", None)
    )


FAMILY = Family(
    summary="ViT; labels of pictures, vectors of pictures",
    read_config=read_config,
    tensors=vit_tensors("vit"),
    defaults=DEFAULTS,
    optional_prefix="vit.",
    ignored_tensors=(r"vit\.pooler\.dense\.(weight|bias)", r"classifier\.(weight|bias)"),
)
