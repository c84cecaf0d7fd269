"""InternVL in the form of transformers (`-hf`): InternViT over tiles, pixel shuffle, dense layers, and a text model.

Source: transformers/models/internvl/modeling_internvl.py, processing_internvl.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import NormConfig, QKNormConfig, VisionConfig
from edgeformer.config.projectors import MlpProjector
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields
from edgeformer.families._vision import inner_fields, read_feed_forward, read_tower
from edgeformer.families.picture_text import (
    PictureTextFamily,
    Seeing,
    blocks_from,
    layer_index,
    named_token,
)
from edgeformer.manifest.placeholders.enclosed import EnclosedMarks

DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 448, "patch_size": 14, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "norm_type": "layer_norm",
    "attention_bias": False, "use_qk_norm": False, "use_mean_pooling": True,
}  # fmt: skip


def read(fields: Fields) -> Seeing:
    """Read the tower, the layer that is read of it, and the projector."""
    fields.ignore("image_token_id", "image_seq_length", "video_token_id")
    vision = _read_tower(inner_fields(fields, DEFAULTS, "internvl_vision"))
    fields.choice("vision_feature_select_strategy", {"default": None}, "default")
    count, given = len(vision.blocks), fields.take("vision_feature_layer", -1)
    layer = layer_index(given, count)
    if given != -1:  # the states are read before the norm behind the last block
        vision = replace(vision, blocks=vision.blocks[:layer] or vision.blocks[:1], final_norm=None)
    return Seeing(
        tower=vision,
        feature_layers=(layer,),
        projector=MlpProjector(
            factor=_factor(fields.take("downsample_ratio", 0.5)),
            norm=NormConfig(kind="layer_norm", eps=1e-5, bias=True),
            **fields.choice("projector_hidden_act", ACTIVATIONS, "gelu"),
            bias=True,
        ),
        unread=blocks_from("vision_tower.encoder.layer.", layer, count),
    )


def _factor(ratio: Any) -> int:
    """Return the patches of a side of a square, of the part of patches of a side that stays."""
    factor = round(1 / ratio) if isinstance(ratio, int | float) and 0 < ratio <= 1 else 0
    if factor == 0 or 1 / factor != ratio:
        raise ConfigError(f"config.json has downsample_ratio = {ratio!r}; it must be one divided by an integer.")
    return factor


def _read_tower(fields: Fields) -> VisionConfig:
    """Read InternViT."""
    # Initial values and tokens of training.
    fields.ignore(
        "initializer_range", "layer_scale_init_value", "projection_dropout", "use_mask_token", "architectures"
    )
    fields.choice("use_absolute_position_embeddings", {True: None}, True)
    vision = read_tower(
        fields,
        None,
        prefix_tokens=1,
        feed_forward=read_feed_forward(fields),
        qkv_bias=fields.take("attention_bias"),
        final_norm=not fields.take("use_mean_pooling"),
        layer_scale=True,
        interpolates=True,
    )
    norms = {kind: kind for kind in ("layer_norm", "rms_norm")}
    kind = fields.choice("norm_type", norms)
    norm = NormConfig(kind=kind, eps=fields.take("layer_norm_eps"), bias=kind == "layer_norm")
    over_all = QKNormConfig(norm=NormConfig(eps=1e-6), over="projection") if fields.take("use_qk_norm") else None
    fields.finish()
    grid = vision.trained_grid
    if grid.rows != grid.columns:
        raise ConfigError(f"config.json has a tower of {grid.rows} × {grid.columns} patches; they must be a square.")
    [block, *_] = vision.blocks
    assert block.attention is not None
    block = replace(block, norm=norm, attention=replace(block.attention, qk_norm=over_all))
    return replace(vision, blocks=(block,) * len(vision.blocks))


EMBEDDINGS, LAYER = "vision_tower.embeddings", "vision_tower.encoder.layer.*"

TENSORS = {
    "tower.stem.convolution": f"{EMBEDDINGS}.patch_embeddings.projection",
    "tower.prefix.0": f"{EMBEDDINGS}.cls_token",
    "tower.position_embedding.weight": f"{EMBEDDINGS}.position_embeddings",
    "tower.blocks.*.attention.query": f"{LAYER}.attention.q_proj",
    "tower.blocks.*.attention.key": f"{LAYER}.attention.k_proj",
    "tower.blocks.*.attention.value": f"{LAYER}.attention.v_proj",
    "tower.blocks.*.attention.output": f"{LAYER}.attention.projection_layer",
    "tower.blocks.*.attention.query_norm": f"{LAYER}.attention.q_norm",
    "tower.blocks.*.attention.key_norm": f"{LAYER}.attention.k_norm",
    "tower.blocks.*.attention_norm": f"{LAYER}.layernorm_before",
    "tower.blocks.*.attention_scale.scale": f"{LAYER}.lambda_1",
    "tower.blocks.*.feed_forward_norm": f"{LAYER}.layernorm_after",
    "tower.blocks.*.feed_forward.up": f"{LAYER}.mlp.fc1",
    "tower.blocks.*.feed_forward.down": f"{LAYER}.mlp.fc2",
    "tower.blocks.*.feed_forward_scale.scale": f"{LAYER}.lambda_2",
    "tower.final_norm": "vision_tower.layernorm",
    "projector.norm": "multi_modal_projector.layer_norm",
    "projector.input": "multi_modal_projector.linear_1",
    "projector.output": "multi_modal_projector.linear_2",
}


def marks(tokenizer_config: Mapping[str, Any]) -> EnclosedMarks:
    """Return the texts of tokens around pictures, as the tokenizer names them."""
    return EnclosedMarks(
        picture=named_token(tokenizer_config, "context_image_token", "<IMG_CONTEXT>"),
        start=named_token(tokenizer_config, "start_image_token", "<img>"),
        end=named_token(tokenizer_config, "end_image_token", "</img>"),
    )


FAMILY = PictureTextFamily(
    summary="InternVL 2.5, 3 and 3.5 as transformers saves them (`-hf`): pictures in tiles, and text; no videos",
    read=read,
    tensors=TENSORS,
    marks=marks,
    processor="aspect_tiles",
    picture_options=lambda data, config: {"crop_to_patches": True},
    processor_fields=("auto_map", "chat_template", "image_seq_length", "processor_class", "video_processor"),
    ignored_tensors=(r"vision_tower\.embeddings\.mask_token",),
)
