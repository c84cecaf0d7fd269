"""ModernVBERT: SigLIP's tower over tiles, pixel shuffle, and ModernBERT, which attends both ways to pictures and text.

Source: transformers/models/modernvbert/modeling_modernvbert.py; its processor is that of Idefics3.
"""

from edgeformer.config.projectors import PixelShuffleProjector
from edgeformer.families import siglip_vision_model
from edgeformer.families._family import Fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.families.picture_text.one_size.gemma3 import read_siglip
from edgeformer.families.picture_text.tiles.idefics3 import PROCESSOR_FIELDS, TENSORS, marks


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    fields.ignore("image_token_id")
    vision = read_siglip(fields, siglip_vision_model.DEFAULTS)
    return Seeing(
        tower=vision,
        feature_layers=(len(vision.blocks),),
        projector=PixelShuffleProjector(factor=fields.take("pixel_shuffle_factor", 4), bias=False),
        tiled=True,
    )


FAMILY = PictureTextFamily(
    summary="ModernVBERT: an encoder of pictures in tiles, and text; vectors of both, masked words, labels",
    read=read,
    tensors=TENSORS | {"projector.output": "connector.modality_projection"},
    marks=marks,
    processor="tiles",
    processor_fields=PROCESSOR_FIELDS,
    ignored_tensors=(r"vision_model\.head\..*",),  # what SigLIP pools
)
