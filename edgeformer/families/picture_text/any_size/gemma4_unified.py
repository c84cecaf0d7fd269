"""Gemma 4 without an encoder: patches of pictures become states by norms and two linear maps, and Gemma 4.

The states of a picture attend to each other in layers with a window alone, as in Gemma 4, and as transformers says in
`create_masks_for_vision_model` and computes it in `generate` with a static cache. With any other cache transformers
5.23 lets them do so in all layers, and beyond windows: its `forward` makes masks of another function. The map of sound
is left out. Source: transformers/models/gemma4_unified/modeling_gemma4_unified.py, processing_gemma4_unified.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import DecoderConfig, GridVisionConfig, LearnedPositions, NormConfig, PatchVectors
from edgeformer.config.projectors import AveragePoolProjector
from edgeformer.families._family import Fields
from edgeformer.families._vision import inner_fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.families.picture_text.any_size import gemma4
from edgeformer.families.picture_text.any_size.qwen2_vl import SIDES

DEFAULTS: dict[str, Any] = {
    "patch_size": 16, "pooling_kernel_size": 3, "mm_embed_dim": 3840, "mm_posemb_size": 1120, "rms_norm_eps": 1e-6,
    "output_proj_dims": 3840,
}  # fmt: skip
NORM = NormConfig(kind="layer_norm", eps=1e-5, bias=True)
"""The norms of patches, which config.json says nothing about."""


def read(fields: Fields) -> Seeing:
    """Read the tower, which has no blocks, and the projector."""
    fields.ignore(*gemma4.TOKENS, "audio_config")
    tower = inner_fields(fields, DEFAULTS, "gemma4_unified_vision")
    tower.ignore("architectures", "initializer_range", "model_patch_size")
    size, side = tower.take("mm_embed_dim"), tower.take("mm_posemb_size")
    tower.choice("output_proj_dims", {size: None}, size)
    vision = GridVisionConfig(
        vocab_size=0,
        hidden_size=size,
        context_length=min(SIDES, side),
        blocks=(),
        final_norm=None,
        position_embedding=LearnedPositions(rows=2 * side),
        embedding_norm=NORM,
        patches=PatchVectors(
            side=tower.take("patch_size") * tower.take("pooling_kernel_size"), frames=1, bias=True, norm=NORM
        ),
        square=1,
        table_side=side,
        axis_tables="alternating",
    )
    norm = NormConfig(eps=tower.take("rms_norm_eps"), weight=False)
    tower.finish()
    return Seeing(tower=vision, feature_layers=(0,), projector=AveragePoolProjector(factor=1, norm=norm))


def completed(seeing: Seeing, text: DecoderConfig, data: Mapping[str, Any]) -> Seeing:
    """Return what was read with how pictures are read by the text model."""
    return replace(seeing, bidirectional=gemma4.read_both_ways(data, "vision"))


EMBEDDER = "vision_embedder"

FAMILY = PictureTextFamily(
    summary="Gemma 4 without an encoder: pictures of any size within a number of tokens, and text; sound is left out",
    read=read,
    tensors={
        "tower.stem_norm": f"{EMBEDDER}.patch_ln1",
        "tower.stem": f"{EMBEDDER}.patch_dense",
        "tower.stem_output_norm": f"{EMBEDDER}.patch_ln2",
        "tower.position_embedding.weight": f"{EMBEDDER}.pos_embedding",
        "tower.embedding_norm": f"{EMBEDDER}.pos_norm",
        "projector.output": "embed_vision.embedding_projection",
    },
    marks=gemma4.marks,
    processor="token_budget",
    completed=completed,
    processor_fields=gemma4.FAMILY.processor_fields,
)
