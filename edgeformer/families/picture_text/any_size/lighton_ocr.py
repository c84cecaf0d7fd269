"""LightOnOCR: the tower and the projector of Mistral 3, a Qwen3, and no tokens at the ends of rows.

Source: transformers/models/lighton_ocr/modeling_lighton_ocr.py, processing_lighton_ocr.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import TowerTextConfig
from edgeformer.config.projectors import MergedPatchesProjector
from edgeformer.families._family import Fields
from edgeformer.families.picture_text import Seeing, named_token
from edgeformer.families.picture_text.any_size import llava_pixtral, mistral3
from edgeformer.manifest.placeholders.grid import GridMarks


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    fields.ignore("image_token_id", "image_token_index")
    factor = fields.take("spatial_merge_size", 2)
    vision, layer, unread = llava_pixtral.read_pixtral(fields, square=factor, layer=-1)
    projector = MergedPatchesProjector(factor=factor, norm=llava_pixtral.NORM, activation="gelu", bias=False)
    return Seeing(tower=vision, feature_layers=(layer,), projector=projector, unread=unread)


def marks(tokenizer_config: Mapping[str, Any]) -> GridMarks:
    """Return the text of the placeholder, as the tokenizer names it."""
    return GridMarks(picture=named_token(tokenizer_config, "image_token", "<|image_pad|>"))


def picture_options(data: Mapping[str, Any], config: TowerTextConfig) -> Mapping[str, Any]:
    """Return the sides of a patch and of a square; the file has those of both together."""
    return {name: value for name, value in llava_pixtral.picture_options(data, config).items() if name != "patch_size"}


def _renamed(theirs: str) -> str:
    return theirs.replace("vision_tower.", "vision_encoder.").replace("multi_modal_projector.", "vision_projection.")


FAMILY = replace(
    mistral3.FAMILY,
    summary="LightOnOCR: pages of any size, a token for each square of patches, and text",
    read=read,
    tensors={ours: _renamed(theirs) for ours, theirs in mistral3.TENSORS.items()},
    marks=marks,
    picture_options=picture_options,
)
