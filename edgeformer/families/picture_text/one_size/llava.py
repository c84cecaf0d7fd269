"""LLaVA 1.5 and models like it: states of a layer of CLIP's or SigLIP's tower, two dense layers, and a text model.

Source: transformers/models/llava/modeling_llava.py, processing_llava.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import VisionConfig
from edgeformer.config.projectors import MlpProjector
from edgeformer.errors import ConfigError, shown
from edgeformer.families import clip_vision_model, siglip_vision_model
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields, Packed
from edgeformer.families._vision import inner_fields
from edgeformer.families._wrappers import LLAVA
from edgeformer.families.picture_text import PictureTextFamily, Seeing, blocks_from, layer_index
from edgeformer.manifest.placeholders.repeated import RepeatedMarks

CLIP_336: dict[str, Any] = {
    "intermediate_size": 4096, "hidden_size": 1024, "patch_size": 14, "image_size": 336, "num_hidden_layers": 24,
    "num_attention_heads": 16, "projection_dim": 768,
}  # fmt: skip
"""The tower of a config.json that has none."""


def read(fields: Fields) -> Seeing:
    """Read the tower, the layers that are read of it, and the projector."""
    return read_llava(fields)


def read_llava(
    fields: Fields, default_tower: Mapping[str, Any] = CLIP_336, *, layer: int = -2, strategy: str = "default"
) -> Seeing:
    """Read the tower, the layers that are read of it, and the projector.

    default_tower, layer, strategy: of a config.json without them.
    """
    fields.ignore(*LLAVA, "image_token_index", "image_token_id", "image_seq_length", "image_grid_pinpoints")
    given = fields.take("vision_config", default_tower)
    kind = given.get("model_type", default_tower.get("model_type", "clip_vision_model"))
    layers = fields.take("vision_feature_layer", layer)
    without_first = fields.choice("vision_feature_select_strategy", {"default": True, "full": False}, strategy)
    vision = _read_tower(kind, given)
    count = len(vision.blocks)
    indices = tuple(layer_index(each, count) for each in (layers if isinstance(layers, list) else [layers]))
    if without_first and vision.prefix_tokens != 1:
        raise ConfigError(
            f"config.json has vision_feature_select_strategy = 'default', which leaves out the first state, and a "
            f"{kind} has no class token: a patch would be left out. Set it to 'full' if the model was trained so."
        )
    return Seeing(
        # The states are read before the norm behind the last block.
        tower=replace(vision, blocks=vision.blocks[: max(indices)] or vision.blocks[:1], final_norm=None),
        feature_layers=indices,
        keeps_prefix=not without_first,
        projector=MlpProjector(
            **fields.choice("projector_hidden_act", ACTIVATIONS, "gelu"),
            bias=fields.take("multimodal_projector_bias", True),
        ),
        unread=tuple(
            pattern for prefix in PREFIXES for pattern in blocks_from(f"{prefix}encoder.layers.", max(indices), count)
        ),
    )


def _read_tower(kind: str, given: Mapping[str, Any]) -> VisionConfig:
    """Read a tower, without what it pools."""
    holder = Fields({"vision_config": dict(given), "model_type": "llava"})
    if kind == "clip_vision_model":
        tower = inner_fields(holder, clip_vision_model.DEFAULTS, kind)
        vision = clip_vision_model.read_clip_tower(tower, None, None)
    elif kind == "siglip_vision_model":
        tower = inner_fields(holder, siglip_vision_model.DEFAULTS, kind)
        vision = siglip_vision_model.read_siglip_tower(tower, None)
    else:
        raise ConfigError(
            f"config.json has a tower of model_type {shown(kind)}; supported in LLaVA: clip_vision_model, "
            "siglip_vision_model. Its text model is exported by itself: --text-only."
        )
    tower.ignore("projection_dim", "vocab_size", "vision_use_head", "architectures", "initializer_range")
    tower.finish()
    return replace(vision, pooler=None, projection=None)


PREFIXES = ("vision_tower.vision_model.", "vision_tower.")
"""Beginnings of the names of a tower's tensors: in published checkpoints, and as transformers 5 writes them."""


def _in_tower(theirs: str | Packed) -> str:
    assert isinstance(theirs, str)
    name = theirs.removeprefix("vision_model.")
    return "|".join(f"{prefix}{name}" for prefix in PREFIXES)


PARTS = ("stem.", "prefix.", "position_embedding", "embedding_norm", "blocks.")
"""Parts of a tower that are read."""

TENSORS = {
    **{
        f"tower.{ours}": _in_tower(theirs)
        for ours, theirs in clip_vision_model.TENSORS.items()
        if ours.startswith(PARTS)
    },
    "projector.input": "multi_modal_projector.linear_1",
    "projector.output": "multi_modal_projector.linear_2",
}


def picture_token(tokenizer_config: Mapping[str, Any]) -> str:
    """Return the text of the placeholder."""
    named = tokenizer_config.get("image_token") or "<image>"
    return str(named.get("content") if isinstance(named, dict) else named)


FAMILY = PictureTextFamily(
    summary="LLaVA with the tower of CLIP or SigLIP: pictures of one size, and text",
    read=read,
    tensors=TENSORS,
    marks=lambda tokenizer_config: RepeatedMarks(picture=picture_token(tokenizer_config)),
    processor="fixed_size",
    processor_fields=(
        "auto_map", "chat_template", "image_token", "num_additional_image_tokens", "patch_size", "processor_class",
        "vision_feature_select_strategy",
    ),
    ignored_tensors=(r"vision_tower\.(vision_model\.)?(post_layernorm|head)\..*",),
    computed_tensors={r"vision_tower\.(vision_model\.)?embeddings\.position_ids": "positions"},
)  # fmt: skip
