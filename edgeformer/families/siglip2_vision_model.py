"""The tower of pictures of SigLIP 2 of any resolution (NaFlex), by itself.

Source: transformers/models/siglip2/modeling_siglip2.py.
"""

from math import isqrt
from typing import Any

from edgeformer.config import (
    AttentionPooler,
    BlockConfig,
    LearnedPositions,
    NaflexVisionConfig,
    PatchVectors,
    PictureClassifier,
)
from edgeformer.errors import ConfigError, shown
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import OTHER_HALF, POSITION_IDS, read_class, read_feed_forward, read_norm
from edgeformer.families.siglip_vision_model import TENSORS as OF_ONE_SIZE

DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "patch_size": 16, "num_patches": 256, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    "vision_use_head": True,
}  # fmt: skip


def read_config(fields: Fields, context_length: int | None) -> NaflexVisionConfig:
    """Read the config.json of a tower."""
    read_class(fields, {"Siglip2VisionModel": None}, "Siglip2VisionModel")
    return read_naflex_tower(fields)


def read_naflex_tower(fields: Fields, classifier: PictureClassifier | None = None) -> NaflexVisionConfig:
    """Read a tower. One with a classifier pools nothing else. The processor says how many patches a picture has."""
    fields.ignore("attention_dropout", "initializer_factor")
    hidden_size, heads, norm = fields.take("hidden_size"), fields.take("num_attention_heads"), read_norm(fields)
    feed_forward, positions = read_feed_forward(fields), fields.take("num_patches")
    side = table_side(positions)
    pools = fields.take("vision_use_head") and classifier is None
    attention = multi_head(hidden_size, heads, bias=True, causal=False)
    block = BlockConfig(attention=attention, feed_forward=feed_forward, norm=norm)
    return NaflexVisionConfig(
        vocab_size=0,
        hidden_size=hidden_size,
        context_length=positions,
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm,
        position_embedding=LearnedPositions(rows=positions),
        patches=PatchVectors(
            side=fields.take("patch_size"), frames=1, channels=fields.choice("num_channels", {3: 3}, 3), bias=True
        ),
        table_side=side,
        pooler=AttentionPooler(num_heads=heads, norm=norm, feed_forward=feed_forward) if pools else None,
        classifier=classifier,
    )


def table_side(positions: int) -> int:
    """Return the rows of a square table of so many positions."""
    side = isqrt(positions)
    if side**2 != positions:
        raise ConfigError(f"config.json has num_patches = {shown(positions)} in its tower; it must be a square number.")
    return side


TENSORS = {name: theirs for name, theirs in OF_ONE_SIZE.items() if name != "stem.convolution"} | {
    "stem": "vision_model.embeddings.patch_embedding"
}

FAMILY = Family(
    summary="SigLIP 2's tower of pictures of any resolution (NaFlex), with its attention-pooling head; vectors",
    read_config=read_config,
    tensors=TENSORS,
    defaults=DEFAULTS,
    optional_prefix="vision_model.",
    ignored_tensors=OTHER_HALF,
    computed_tensors=POSITION_IDS,
)
