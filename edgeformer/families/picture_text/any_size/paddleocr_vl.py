"""PaddleOCR-VL: SigLIP's tower over pictures of any size, with rotations, squares of patches as states, and ERNIE 4.5.

Source: transformers/models/paddleocr_vl/modeling_paddleocr_vl.py, processing_paddleocr_vl.py.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.config import BlockConfig, GridVisionConfig, LearnedPositions, NormConfig, PatchVectors, RotaryConfig
from edgeformer.config.projectors import MergerProjector
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Fields
from edgeformer.families._vision import encoder_tensors, inner_fields, read_feed_forward, read_norm
from edgeformer.families._wrappers import PADDLE
from edgeformer.families.picture_text import PictureTextFamily, Seeing, named_token
from edgeformer.families.picture_text.any_size.qwen2_vl import (
    PROCESSOR_FIELDS,
    SIDES,
    axes,
    ignore_tokens,
    read_base,
)
from edgeformer.manifest.placeholders.grid import GridMarks

DEFAULTS: dict[str, Any] = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 384, "patch_size": 14, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    "spatial_merge_size": 2,
}  # fmt: skip


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    ignore_tokens(fields)
    fields.ignore(*PADDLE)
    vision = _read_tower(inner_fields(fields, DEFAULTS, "paddleocr_vl_vision"))
    norm = NormConfig(kind="layer_norm", eps=1e-5, bias=True)
    return Seeing(
        tower=vision,
        feature_layers=(len(vision.blocks),),
        projector=MergerProjector(factor=vision.square, norm=norm, activation="gelu"),
    )


def _read_tower(tower: Fields) -> GridVisionConfig:
    """Read SigLIP with rotations, whose positions are interpolated."""
    tower.ignore("architectures", "attention_dropout", "initializer_range", "temporal_patch_size", "tokens_per_second")
    hidden_size, heads = tower.take("hidden_size"), tower.take("num_attention_heads")
    patch, norm = tower.take("patch_size"), read_norm(tower)
    side = tower.take("image_size") // patch
    rotary = RotaryConfig(
        rotary_dim=hidden_size // max(heads, 1) // 2, base=read_base(tower), interleaved=False, scaling=None
    )
    block = BlockConfig(
        attention=multi_head(hidden_size, heads, bias=True, causal=False, rotary=rotary),
        feed_forward=read_feed_forward(tower),
        norm=norm,
    )
    config = GridVisionConfig(
        vocab_size=0,
        hidden_size=hidden_size,
        context_length=SIDES,
        blocks=(block,) * tower.take("num_hidden_layers"),
        final_norm=norm,
        position_embedding=LearnedPositions(rows=side**2),
        patches=PatchVectors(side=patch, frames=1, channels=tower.choice("num_channels", {3: 3}, 3), bias=True),
        square=tower.take("spatial_merge_size"),
        table_side=side,
        bordered=True,
    )
    tower.finish()
    return config


def marks(tokenizer_config: Mapping[str, Any]) -> GridMarks:
    """Return the text of the placeholder, as the tokenizer names it."""
    return GridMarks(picture=named_token(tokenizer_config, "image_token", "<|IMAGE_PLACEHOLDER|>"))


TOWER = "visual.vision_model"
PARTS = {"norm": "pre_norm", "input": "linear_1", "output": "linear_2"}
"""Parts of the projector in the checkpoint."""

FAMILY = PictureTextFamily(
    summary="PaddleOCR-VL: pages of any size, a token for each square of patches, and text; videos are left out",
    read=read,
    tensors={
        "tower.stem": f"{TOWER}.embeddings.patch_embedding",
        "tower.position_embedding": f"{TOWER}.embeddings.position_embedding",
        "tower.final_norm": f"{TOWER}.post_layernorm",
        **{f"tower.{ours}": theirs for ours, theirs in encoder_tensors(TOWER).items()},
        **{f"projector.{ours}": f"mlp_AR.{theirs}|projector.{theirs}" for ours, theirs in PARTS.items()},
    },
    marks=marks,
    processor="row_grid",
    axes=axes,
    processor_fields=PROCESSOR_FIELDS,
    ignored_tensors=(r"visual\.vision_model\.(head|embeddings\.packing_position_embedding)\..*",),
)
