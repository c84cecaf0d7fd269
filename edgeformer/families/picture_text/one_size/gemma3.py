"""Gemma 3 with pictures: SigLIP's tower, means of squares of patches, and Gemma 3, where a picture attends both ways.

Source: transformers/models/gemma3/modeling_gemma3.py, processing_gemma3.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from edgeformer.config import NormConfig, VisionConfig
from edgeformer.config.projectors import AveragePoolProjector
from edgeformer.errors import ConfigError, shown
from edgeformer.families import siglip_vision_model
from edgeformer.families._family import Fields
from edgeformer.families._vision import inner_fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.manifest.placeholders.prompt_text import PromptText
from edgeformer.manifest.placeholders.repeated import RepeatedMarks


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    fields.ignore("image_token_index", "image_token_id", "boi_token_index", "eoi_token_index")
    vision = read_siglip(fields, siglip_vision_model.DEFAULTS)
    tokens, side = fields.take("mm_tokens_per_image", 256), vision.patches.grid.rows
    factor = side // max(isqrt(tokens), 1)
    if vision.patches.grid.columns != side or factor == 0 or (side // factor) ** 2 != tokens:
        raise ConfigError(
            f"config.json has mm_tokens_per_image = {shown(tokens)}, and a picture has {side} × "
            f"{vision.patches.grid.columns} patches, which no squares make {shown(tokens)} states of."
        )
    return Seeing(
        tower=vision,
        feature_layers=(len(vision.blocks),),
        projector=AveragePoolProjector(factor=factor, norm=NormConfig(eps=_eps(vision), offset=1.0)),
        bidirectional="pictures",
    )


def read_siglip(fields: Fields, defaults: Mapping[str, Any]) -> VisionConfig:
    """Read SigLIP's tower, without what it pools. defaults: of its fields."""
    given = fields.take("vision_config", {})
    kind = given.get("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise ConfigError(f"config.json has a tower of model_type {shown(kind)}; supported here: siglip_vision_model.")
    tower = inner_fields(Fields({"vision_config": dict(given), "model_type": kind}), defaults, kind)
    # Fields of PaliGemma's towers follow from others, and its projector has no activation.
    tower.ignore("architectures", "initializer_range", "num_image_tokens", "num_positions", "projection_dim")
    tower.ignore("projector_hidden_act", "vocab_size")
    vision = siglip_vision_model.read_siglip_tower(tower, None)
    tower.finish()
    return replace(vision, pooler=None)


def _eps(vision: VisionConfig) -> float:
    """Return the epsilon of the tower's norms, which is that of the projector's, too."""
    assert vision.final_norm is not None
    return vision.final_norm.eps


TOWER_TENSORS = {
    f"tower.{ours}": f"vision_tower.{theirs}|vision_tower.{theirs.removeprefix('vision_model.')}"
    for ours, theirs in siglip_vision_model.TENSORS.items()
    if isinstance(theirs, str) and not ours.startswith(("classifier.", "pooler."))
}
"""Names of SigLIP's tensors in published checkpoints, and as transformers 5 writes them."""
UNREAD_TENSORS = (r"vision_tower\.(vision_model\.)?head\..*",)
"""Tensors of what SigLIP pools."""


def marks(tokenizer_config: Mapping[str, Any]) -> RepeatedMarks:
    """Return the texts of tokens around pictures, as the tokenizer names them."""
    extra = tokenizer_config.get("extra_special_tokens")
    named = {**tokenizer_config, **(extra if isinstance(extra, dict) else {})}

    def text(name: str, default: str) -> str:
        token = named.get(name) or default
        return str(token.get("content") if isinstance(token, dict) else token)

    picture, begin = text("image_token", "<image_soft_token>"), text("boi_token", "<start_of_image>")
    written = f"\n\n{begin}{picture}{text('eoi_token', '<end_of_image>')}\n\n"
    return RepeatedMarks(picture=picture, text=PromptText(spelled=begin, written=written))


FAMILY = PictureTextFamily(
    summary="Gemma 3: pictures of one size, whose states attend to each other, and text; pan and scan is left out",
    read=read,
    tensors={
        **TOWER_TENSORS,
        "projector.norm": "multi_modal_projector.mm_soft_emb_norm",
        "projector.output.weight": "multi_modal_projector.mm_input_projection_weight",
    },
    marks=marks,
    processor="fixed_size",
    processor_fields=("auto_map", "chat_template", "image_seq_length", "processor_class"),
    ignored_tensors=UNREAD_TENSORS,
    transposed=("multi_modal_projector.mm_input_projection_weight",),
)
