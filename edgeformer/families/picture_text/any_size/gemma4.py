"""Gemma 4 with pictures: a tower with clamped layers and rotations by columns and rows, means of squares, and Gemma 4.

Of a model that hears, too, that part is left out. Source: transformers/models/gemma4/modeling_gemma4.py,
processing_gemma4.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import (
    AttentionConfig,
    Bidirectional,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    GridVisionConfig,
    LearnedPositions,
    NormConfig,
    PatchVectors,
    PictureLayerInput,
    QKNormConfig,
    RotaryConfig,
)
from edgeformer.config.feed_forward import BOUNDS
from edgeformer.config.projectors import AveragePoolProjector
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields
from edgeformer.families._vision import inner_fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing, named_token
from edgeformer.families.picture_text.any_size.qwen2_vl import SIDES, read_base
from edgeformer.manifest.placeholders.grid import GridMarks

DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 12, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
    "pooling_kernel_size": 3, "patch_size": 16, "position_embedding_size": 10240, "use_clipped_linears": False,
    "standardize": False,
}  # fmt: skip
TOKENS = (
    "image_token_id", "boi_token_id", "eoi_token_id", "video_token_id", "audio_token_id", "boa_token_id",
    "eoa_token_id", "eoa_token_index",
)  # fmt: skip
"""Fields with the ids of tokens, which the tokenizer has, too."""


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    # audio_config is of the part that hears.
    fields.ignore(*TOKENS, "audio_config", "vision_soft_tokens_per_image")
    tower = inner_fields(fields, DEFAULTS, "gemma4_vision")
    factor, standardized = tower.take("pooling_kernel_size"), tower.take("standardize")
    vision = _read_tower(tower, factor)
    return Seeing(
        tower=vision,
        feature_layers=(len(vision.blocks),),
        projector=AveragePoolProjector(
            factor=factor,
            norm=NormConfig(eps=tower.take("rms_norm_eps"), weight=False),
            scale=vision.hidden_size**0.5,
            standardized=standardized or None,
        ),
    )


def _read_tower(tower: Fields, square: int) -> GridVisionConfig:
    """Read the tower."""
    # Its attention has no biases, whatever attention_bias says, and positions are those of the table.
    tower.ignore("architectures", "attention_bias", "attention_dropout", "initializer_range", "max_position_embeddings")
    hidden_size, head_dim = tower.take("hidden_size"), tower.take("head_dim")
    if head_dim <= 0 or head_dim % 4:
        raise ConfigError(f"config.json has head_dim = {head_dim} in its tower; it must be a multiple of four.")
    norm, clamped = NormConfig(eps=tower.take("rms_norm_eps")), tower.take("use_clipped_linears") or None
    side = tower.take("position_embedding_size")
    block = BlockConfig(
        attention=AttentionConfig(
            num_heads=tower.take("num_attention_heads"),
            num_kv_heads=tower.take("num_key_value_heads"),
            head_dim=head_dim,
            scale=1.0,
            qkv_bias=False,
            output_bias=False,
            rotary=RotaryConfig(
                rotary_dim=head_dim // 2, base=read_base(tower, 100.0), interleaved=False, scaling=None, halves=True
            ),
            causal=False,
            qk_norm=QKNormConfig(norm=norm, over="head"),
            value_norm=replace(norm, weight=False),
            clamped=clamped,
        ),
        feed_forward=FeedForwardConfig(
            intermediate_size=tower.take("intermediate_size"),
            **tower.choice("hidden_activation", ACTIVATIONS),
            bias=False,
            clamped=clamped,
        ),
        norm=norm,
        norm_placement="sandwich",
    )
    config = GridVisionConfig(
        vocab_size=0,
        hidden_size=hidden_size,
        context_length=min(SIDES, side),
        blocks=(block,) * tower.take("num_hidden_layers"),
        final_norm=None,
        position_embedding=LearnedPositions(rows=2 * side),
        patches=PatchVectors(side=tower.take("patch_size"), frames=1, bias=False, centred=True),
        square=square,
        table_side=side,
        axis_tables="columns_first",
    )
    tower.finish()
    return config


def completed(seeing: Seeing, text: DecoderConfig, data: Mapping[str, Any]) -> Seeing:
    """Return what was read with how pictures are read by the text model."""
    given = data.get("text_config") or {}
    layer_input = None
    if text.per_layer_embedding is not None:
        padding = given.get("pad_token_id")
        layer_input = PictureLayerInput(
            placeholder=data.get("image_token_id", 258880), token=0 if padding is None else padding
        )
    return replace(seeing, layer_input=layer_input, bidirectional=read_both_ways(data))


def read_both_ways(data: Mapping[str, Any], default: str | None = None) -> Bidirectional | None:
    """Return what attends both ways. default: of a config.json that does not say so."""
    given = (data.get("text_config") or {}).get("use_bidirectional_attention", default)
    return "windows" if given == "vision" else None  # its text model has refused others


TOWER, LAYER = "vision_tower", "vision_tower.encoder.layers.*"
LINEAR = {
    **{f"attention.{ours}": f"self_attn.{theirs}_proj" for ours, theirs in
       (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o"))},
    **{f"feed_forward.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
"""The linear layers of a block."""
NORMS = {
    "attention_norm": "input_layernorm", "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm", "feed_forward_output_norm": "post_feedforward_layernorm",
    "attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm",
}  # fmt: skip
"""The norms of a block with weights."""


def marks(tokenizer_config: Mapping[str, Any]) -> GridMarks:
    """Return the texts of tokens around pictures, as the tokenizer names them."""
    return GridMarks(
        picture=named_token(tokenizer_config, "image_token", "<|image|>"),
        start=named_token(tokenizer_config, "boi_token", "<|image>"),
        end=named_token(tokenizer_config, "eoi_token", "<image|>"),
    )


FAMILY = PictureTextFamily(
    summary="Gemma 4: pictures of any size within a number of tokens, and text; sound and videos are left out",
    read=read,
    tensors={
        "tower.stem": f"{TOWER}.patch_embedder.input_proj",
        "tower.position_embedding.weight": f"{TOWER}.patch_embedder.position_embedding_table",
        **{f"tower.blocks.*.{ours}": f"{LAYER}.{theirs}" for ours, theirs in NORMS.items()},
        **{f"tower.blocks.*.{ours}": f"{LAYER}.{theirs}.linear" for ours, theirs in LINEAR.items()},
        **{
            f"tower.blocks.*.{ours}.{bound}": f"{LAYER}.{theirs}.{bound}"
            for ours, theirs in LINEAR.items() for bound in BOUNDS
        },
        "projector.mean": f"{TOWER}.std_bias",
        "projector.deviation": f"{TOWER}.std_scale",
        "projector.output": "embed_vision.embedding_projection",
    },
    marks=marks,
    processor="token_budget",
    completed=completed,
    processor_fields=(
        "audio_ms_per_token", "audio_seq_length", "auto_map", "chat_template", "feature_extractor", "image_seq_length",
        "processor_class", "video_processor",
    ),
)  # fmt: skip
