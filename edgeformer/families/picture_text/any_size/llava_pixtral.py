"""Pixtral in the form of transformers: LLaVA whose tower reads pictures of any size, a token for each patch.

Source: transformers/models/pixtral/modeling_pixtral.py, processing_pixtral.py, models/llava/modeling_llava.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import (
    BlockConfig,
    FeedForwardConfig,
    GridVisionConfig,
    NormConfig,
    PatchVectors,
    RotaryConfig,
    TowerTextConfig,
)
from edgeformer.config.projectors import MlpProjector
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Fields
from edgeformer.families._vision import inner_fields
from edgeformer.families._wrappers import LLAVA
from edgeformer.families.picture_text import PictureTextFamily, Seeing, blocks_from, layer_index, named_token
from edgeformer.families.picture_text.any_size.qwen2_vl import SIDES, read_base
from edgeformer.manifest.placeholders.row_ends import RowEndsMarks

DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 16, "hidden_act": "gelu",
}  # fmt: skip
NORM = NormConfig(kind="rms_norm", eps=1e-5)


def read(fields: Fields) -> Seeing:
    """Read the tower, the layer that is read of it, and the projector."""
    fields.ignore(*LLAVA, "image_token_index", "image_token_id", "image_seq_length")
    fields.choice("vision_feature_select_strategy", {"full": None}, "default")  # every patch has its token
    vision, layer, unread = read_pixtral(fields, square=1, layer=-2)
    return Seeing(
        tower=vision,
        feature_layers=(layer,),
        projector=MlpProjector(
            **fields.choice("projector_hidden_act", ACTIVATIONS, "gelu"),
            bias=fields.take("multimodal_projector_bias", True),
        ),
        unread=unread,
    )


def read_pixtral(fields: Fields, square: int, layer: int) -> tuple[GridVisionConfig, int, tuple[str, ...]]:
    """Read Pixtral's tower; return it, after how many blocks states are read, and the tensors that nothing reads.

    layer: the layer that is read by a config.json that names none.
    """
    tower = inner_fields(fields, DEFAULTS, "pixtral")
    # A picture has any size, and the size of a head follows from others.
    tower.ignore("architectures", "attention_dropout", "head_dim", "image_size", "initializer_range", "vocab_size")
    hidden_size, heads, count = (tower.take(f) for f in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    base = read_base(tower, tower.take("rope_theta", 10000.0))
    rotary = RotaryConfig(rotary_dim=hidden_size // max(heads, 1), base=base, interleaved=False, scaling=None)
    block = BlockConfig(
        attention=multi_head(hidden_size, heads, bias=False, causal=False, rotary=rotary),
        feed_forward=FeedForwardConfig(
            intermediate_size=tower.take("intermediate_size"), **tower.choice("hidden_act", ACTIVATIONS), bias=False
        ),
        norm=NORM,
    )
    vision = GridVisionConfig(
        vocab_size=0,
        hidden_size=hidden_size,
        context_length=SIDES,
        blocks=(block,) * count,
        final_norm=None,
        embedding_norm=NORM,
        position_embedding=None,
        patches=PatchVectors(
            side=tower.take("patch_size"), frames=1, channels=tower.choice("num_channels", {3: 3}, 3), bias=False
        ),
        square=square,
        alternating=True,
    )
    tower.finish()
    index = layer_index(fields.take("vision_feature_layer", layer), count)
    vision = replace(vision, blocks=vision.blocks[:index] or vision.blocks[:1])
    return vision, index, blocks_from("vision_tower.transformer.layers.", index, count)


LAYER = "vision_tower.transformer.layers.*"

TOWER_TENSORS = {
    "tower.stem": "vision_tower.patch_conv",
    "tower.embedding_norm": "vision_tower.ln_pre",
    "tower.blocks.*.attention.query": f"{LAYER}.attention.q_proj",
    "tower.blocks.*.attention.key": f"{LAYER}.attention.k_proj",
    "tower.blocks.*.attention.value": f"{LAYER}.attention.v_proj",
    "tower.blocks.*.attention.output": f"{LAYER}.attention.o_proj",
    "tower.blocks.*.attention_norm": f"{LAYER}.attention_norm",
    "tower.blocks.*.feed_forward_norm": f"{LAYER}.ffn_norm",
    "tower.blocks.*.feed_forward.gate": f"{LAYER}.feed_forward.gate_proj",
    "tower.blocks.*.feed_forward.up": f"{LAYER}.feed_forward.up_proj",
    "tower.blocks.*.feed_forward.down": f"{LAYER}.feed_forward.down_proj",
}
"""Names of the tower's tensors."""
DENSE = {"projector.input": "multi_modal_projector.linear_1", "projector.output": "multi_modal_projector.linear_2"}


def marks(tokenizer_config: Mapping[str, Any]) -> RowEndsMarks:
    """Return the texts of tokens around pictures, as the tokenizer names them."""
    return RowEndsMarks(
        picture=named_token(tokenizer_config, "image_token", "[IMG]"),
        row_end=named_token(tokenizer_config, "image_break_token", "[IMG_BREAK]"),
        end=named_token(tokenizer_config, "image_end_token", "[IMG_END]"),
    )


def picture_options(data: Mapping[str, Any], config: TowerTextConfig) -> Mapping[str, Any]:
    """Return the sides of a patch and of a square; the processor of texts and pictures says how long both make one."""
    patch, square = (data.get("vision_config") or {}).get("patch_size", DEFAULTS["patch_size"]), config.projector.side
    return {"patch": patch, "square": square, "patch_size": patch * square}


FAMILY = PictureTextFamily(
    summary="Pixtral (`llava` with the tower `pixtral`): pictures of any size, a token for each patch, and text",
    read=read,
    tensors={**TOWER_TENSORS, **DENSE},
    marks=marks,
    processor="longest_edge",
    picture_options=picture_options,
    processor_fields=(
        "auto_map", "chat_template", "image_break_token", "image_end_token", "image_token", "patch_size",
        "processor_class", "spatial_merge_size",
    ),
)  # fmt: skip
