"""Idefics3, with Granite-Docling: a tower like SigLIP's over tiles, pixel shuffle, and a Llama.

Source: transformers/models/idefics3/modeling_idefics3.py, processing_idefics3.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config.projectors import PixelShuffleProjector
from edgeformer.families._family import Fields
from edgeformer.families._vision import clip_tensors, inner_fields, read_feed_forward, read_tower
from edgeformer.families._wrappers import IDEFICS3
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.manifest.placeholders.tiles import TiledMarks

DEFAULTS: dict[str, Any] = {
    "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
    "image_size": 224, "patch_size": 32, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
}  # fmt: skip


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    factor = fields.take("scale_factor", 2)
    fields.ignore(*IDEFICS3, "image_token_id", "perceiver_config")
    tower = inner_fields(fields, DEFAULTS, "idefics3_vision")
    tower.ignore("initializer_range", "max_image_size", "size", "tie_word_embeddings", "use_base_siglip")
    vision = read_tower(tower, None, prefix_tokens=0, feed_forward=read_feed_forward(tower))
    tower.finish()
    return Seeing(
        tower=replace(vision, fractional=True),
        feature_layers=(len(vision.blocks),),
        projector=PixelShuffleProjector(factor=factor, bias=False),
        tiled=True,
    )


TENSORS = {
    **{
        f"tower.{ours}": theirs
        for ours, theirs in clip_tensors(("final_norm", "vision_model.post_layernorm")).items()
        if ours != "classifier.output"
    },
    "projector.output": "connector.modality_projection.proj",
}


def marks(tokenizer_config: Mapping[str, Any]) -> TiledMarks:
    """Return the texts of tokens around pictures, which are the same in all of these models."""
    return TiledMarks(border="<fake_token_around_image>", whole="<global-img>", tile="<row_{row}_col_{column}>")


PROCESSOR_FIELDS = ("image_seq_len", "processor_class", "auto_map", "chat_template")

FAMILY = PictureTextFamily(
    summary="Idefics3 and Granite-Docling: pictures in tiles, and text",
    read=read,
    tensors=TENSORS,
    marks=marks,
    processor="tiles",
    processor_fields=PROCESSOR_FIELDS,
)
