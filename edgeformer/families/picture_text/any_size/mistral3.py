"""Mistral 3 (Mistral Small 3.1 and later, Ministral 3): Pixtral's tower, a token for each square of patches.

Source: transformers/models/mistral3/modeling_mistral3.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import DecoderConfig
from edgeformer.config.projectors import MergedPatchesProjector
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields
from edgeformer.families.picture_text import Seeing
from edgeformer.families.picture_text.any_size import llava_pixtral


def read(fields: Fields) -> Seeing:
    """Read the tower, the layer that is read of it, and the projector."""
    fields.ignore("image_token_index", "image_token_id")
    factor = fields.take("spatial_merge_size", 2)
    vision, layer, unread = llava_pixtral.read_pixtral(fields, square=factor, layer=-1)
    return Seeing(
        tower=vision,
        feature_layers=(layer,),
        projector=MergedPatchesProjector(
            factor=factor,
            norm=llava_pixtral.NORM,
            **fields.choice("projector_hidden_act", ACTIVATIONS, "gelu"),
            bias=fields.take("multimodal_projector_bias", False),
        ),
        unread=unread,
    )


def completed(seeing: Seeing, text: DecoderConfig, data: Mapping[str, Any]) -> Seeing:
    """Return what was read with the epsilon of the text model's norms, which the projector has, too."""
    assert isinstance(seeing.projector, MergedPatchesProjector) and text.final_norm is not None
    norm = replace(seeing.projector.norm, eps=text.final_norm.eps)
    return replace(seeing, projector=replace(seeing.projector, norm=norm))


TENSORS = {
    **llava_pixtral.TOWER_TENSORS,
    **llava_pixtral.DENSE,
    "projector.norm": "multi_modal_projector.norm",
    "projector.merge": "multi_modal_projector.patch_merger.merging_layer",
}

FAMILY = replace(
    llava_pixtral.FAMILY,
    summary="Mistral 3: pictures of any size, a token for each square of patches, and text",
    read=read,
    tensors=TENSORS,
    completed=completed,
)
