"""LFM2-VL: SigLIP 2 over patches of pictures of any size (NaFlex), two dense layers of squares of these, and LFM2.

Source: transformers/models/lfm2_vl/modeling_lfm2_vl.py, transformers/models/siglip2/modeling_siglip2.py.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.config import BlockConfig, GridVisionConfig, LearnedPositions, NormConfig, PatchVectors
from edgeformer.config.projectors import MlpProjector
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Fields
from edgeformer.families._vision import encoder_tensors, inner_fields, read_feed_forward, read_norm
from edgeformer.families.picture_text import PictureTextFamily, Seeing, named_token
from edgeformer.families.siglip2_vision_model import DEFAULTS, table_side
from edgeformer.manifest.placeholders.named_tiles import NamedTilesMarks

OF_PROCESSOR = (
    "do_image_splitting", "encoder_patch_size", "max_image_tokens", "max_num_patches", "max_pixels_tolerance",
    "max_tiles", "min_image_tokens", "min_tiles", "tile_size", "use_image_special_tokens", "use_thumbnail",
)  # fmt: skip
"""Fields that its image processor has, too, which counts."""


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    fields.ignore(*OF_PROCESSOR, "image_token_id", "image_token_index", "vision_feature_layer")
    factor = fields.take("downsample_factor", 2)
    vision = _read_tower(inner_fields(fields, DEFAULTS, "siglip2_vision_model"), factor)
    normalized = fields.take("projector_use_layernorm", True)
    return Seeing(
        tower=vision,
        feature_layers=(len(vision.blocks),),
        projector=MlpProjector(
            factor=factor,
            norm=NormConfig(kind="layer_norm", eps=1e-5, bias=True) if normalized else None,
            size=fields.take("projector_hidden_size", 2560),
            **fields.choice("projector_hidden_act", ACTIVATIONS, "gelu"),
            bias=fields.take("projector_bias", True),
        ),
    )


def _read_tower(fields: Fields, square: int) -> GridVisionConfig:
    """Read SigLIP 2 of any resolution."""
    # A picture has any size.
    fields.ignore("attention_dropout", "architectures", "image_size", "initializer_range", "vision_use_head")
    hidden_size, positions = fields.take("hidden_size"), fields.take("num_patches")
    side = table_side(positions)
    norm = read_norm(fields)
    block = BlockConfig(
        attention=multi_head(hidden_size, fields.take("num_attention_heads"), bias=True, causal=False),
        feed_forward=read_feed_forward(fields),
        norm=norm,
    )
    config = GridVisionConfig(
        vocab_size=0,
        hidden_size=hidden_size,
        context_length=side,
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm,
        position_embedding=LearnedPositions(rows=positions),
        patches=PatchVectors(
            side=fields.take("patch_size"), frames=1, channels=fields.choice("num_channels", {3: 3}, 3), bias=True
        ),
        square=square,
        table_side=side,
        antialiased=True,
    )
    fields.finish()
    return config


PREFIXES = ("vision_tower.vision_model.", "vision_tower.")
"""Beginnings of the names of a tower's tensors: in published checkpoints, and as transformers 5 writes them."""


def _in_tower(theirs: str) -> str:
    return "|".join(f"{prefix}{theirs}" for prefix in PREFIXES)


TENSORS = {
    "tower.stem": _in_tower("embeddings.patch_embedding"),
    "tower.position_embedding": _in_tower("embeddings.position_embedding"),
    "tower.final_norm": _in_tower("post_layernorm"),
    **{
        f"tower.{ours}": _in_tower(theirs.removeprefix("vision_model."))
        for ours, theirs in encoder_tensors("vision_model").items()
    },
    "projector.norm": "multi_modal_projector.layer_norm",
    "projector.input": "multi_modal_projector.linear_1",
    "projector.output": "multi_modal_projector.linear_2",
}


def marks(tokenizer_config: Mapping[str, Any]) -> NamedTilesMarks:
    """Return the texts of tokens around pictures, as the tokenizer names them."""
    return NamedTilesMarks(
        picture=named_token(tokenizer_config, "image_token", "<image>"),
        start=named_token(tokenizer_config, "image_start_token", "<|image_start|>"),
        end=named_token(tokenizer_config, "image_end_token", "<|image_end|>"),
        whole=named_token(tokenizer_config, "image_thumbnail_token", "<|img_thumbnail|>"),
        tile="<|img_row_{row}_col_{column}|>",
    )


FAMILY = PictureTextFamily(
    summary="LFM2-VL: pictures of any size, large ones in tiles, and text",
    read=read,
    tensors=TENSORS,
    marks=marks,
    processor="patch_tiles",
    processor_fields=("auto_map", "chat_template", "processor_class"),
    ignored_tensors=(r"vision_tower\.(vision_model\.)?head\..*",),
)
