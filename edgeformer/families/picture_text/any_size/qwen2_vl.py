"""Qwen2-VL: a tower of pictures of any size, squares of patches as states, positions by time, height and width.

Source: transformers/models/qwen2_vl/modeling_qwen2_vl.py, processing_qwen2_vl.py.
"""

from collections.abc import Mapping
from typing import Any, Literal

from edgeformer.config import (
    BlockConfig,
    FeedForwardConfig,
    GridVisionConfig,
    LearnedPositions,
    NormConfig,
    PatchVectors,
    PatchWindows,
    RotaryAxes,
    RotaryConfig,
)
from edgeformer.config.projectors import MergerProjector
from edgeformer.errors import ConfigError, shown
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Fields, Packed
from edgeformer.families._vision import inner_fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.manifest.placeholders.grid import GridMarks

DEFAULTS: dict[str, Any] = {
    "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "hidden_act": "quick_gelu", "mlp_ratio": 4, "num_heads": 16,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
NORM = NormConfig(kind="layer_norm", eps=1e-6, bias=True)
SIDES = 1 << 12
"""Rows and columns of patches until the processor says how many there are."""


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    ignore_tokens(fields)
    tower = inner_fields(fields, DEFAULTS, "qwen2_vl_vision")
    tower.ignore("hidden_size")  # that of the text model
    hidden_size = tower.take("embed_dim")
    feed_forward = FeedForwardConfig(
        intermediate_size=int(hidden_size * tower.take("mlp_ratio")),
        **tower.choice("hidden_act", ACTIVATIONS),
        gated=False,
        bias=True,
    )
    return read_grid_tower(tower, hidden_size, feed_forward, NORM, grid_input="grid_thw")


def ignore_tokens(fields: Fields) -> None:
    """Mark the ids of tokens around pictures and videos as read: the tokenizer has them."""
    tokens = ("image", "video", "vision", "vision_start", "vision_end")
    fields.ignore(*(f"{name}_token_id" for name in tokens))


def read_grid_tower(
    tower: Fields,
    hidden_size: int,
    feed_forward: FeedForwardConfig,
    norm: NormConfig,
    *,
    patch_bias: bool = False,
    table_side: int | None = None,
    windows: int | None = None,
    deepstack: tuple[int, ...] | None = None,
    grid_input: Literal["grid_thw", "image_grid_thw"] = "image_grid_thw",
) -> Seeing:
    """Read the fields that these towers share, and their projector.

    windows: pixels of a side of a window that blocks attend in, but for those of `fullatt_block_indexes`. Others: see
    `GridVisionConfig` and `PictureTextConfig`.
    """
    tower.ignore("initializer_range", "spatial_patch_size", "tokens_per_second")
    square, depth, heads = tower.take("spatial_merge_size"), tower.take("depth"), tower.take("num_heads")
    patches = PatchVectors(
        side=tower.take("patch_size"), frames=tower.take("temporal_patch_size"), bias=patch_bias,
        channels=tower.choice("in_channels", {3: 3}, tower.choice("in_chans", {3: 3}, 3)),
    )  # fmt: skip
    if heads <= 0 or hidden_size % (4 * heads):
        raise ConfigError(
            f"config.json has {heads} heads in its tower, whose size {hidden_size} is no multiple of four."
        )
    rotary = RotaryConfig(rotary_dim=hidden_size // heads // 2, base=read_base(tower), interleaved=False, scaling=None)
    vision = GridVisionConfig(
        vocab_size=0,
        hidden_size=hidden_size,
        context_length=SIDES,
        blocks=(
            BlockConfig(
                attention=multi_head(hidden_size, heads, bias=True, causal=False, rotary=rotary),
                feed_forward=feed_forward,
                norm=norm,
            ),
        )
        * depth,
        final_norm=None,
        position_embedding=None if table_side is None else LearnedPositions(rows=table_side**2),
        patches=patches,
        square=square,
        table_side=table_side,
        attention_windows=None if windows is None else _read_windows(tower, windows // (square * patches.side)),
        grid_input=grid_input,
    )
    tower.finish()
    return Seeing(
        tower=vision,
        feature_layers=(depth,),
        projector=MergerProjector(factor=square, norm=norm, activation="gelu"),
        deepstack=deepstack,
    )


def read_base(tower: Fields, default: float = 10000.0) -> float:
    """Read the base of the rotation by rows and columns."""
    rope = tower.take("rope_parameters", {})
    unknown = rope.keys() - {"rope_type", "rope_theta"}
    if unknown or rope.get("rope_type", "axial") not in ("axial", "default"):  # which transformers takes for axial
        raise ConfigError(f"config.json has rope_parameters = {shown(rope)} in its tower; supported: rope_type axial.")
    return float(rope.get("rope_theta", default))


def _read_windows(tower: Fields, squares: int) -> PatchWindows:
    return PatchWindows(squares=squares, everywhere=tuple(tower.take("fullatt_block_indexes")))


def tower_tensors(feed_forward: Mapping[str, str], merger: Mapping[str, str]) -> dict[str, str | Packed]:
    """Return the tensor names of a tower and its projector, of those of its networks and of the projector's parts."""
    layer = "visual.blocks.*"
    packed = enumerate(("query", "key", "value"))
    return {
        "tower.stem": "visual.patch_embed.proj",
        **{f"tower.blocks.*.attention.{name}": Packed(f"{layer}.attn.qkv", part) for part, name in packed},
        "tower.blocks.*.attention.output": f"{layer}.attn.proj",
        "tower.blocks.*.attention_norm": f"{layer}.norm1",
        "tower.blocks.*.feed_forward_norm": f"{layer}.norm2",
        **{f"tower.blocks.*.feed_forward.{ours}": f"{layer}.mlp.{theirs}" for ours, theirs in feed_forward.items()},
        **{f"projector.{ours}": f"visual.merger.{theirs}" for ours, theirs in merger.items()},
    }


def read_axes(data: Mapping[str, Any], sections: tuple[int, ...], *, interleaved: bool) -> RotaryAxes:
    """Read the axes of positions of the text model. sections, interleaved: defaults of the family."""
    text = data.get("text_config") or data
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if rope.get("mrope_interleaved", interleaved) != interleaved:
        raise ConfigError(
            f"config.json has mrope_interleaved = {shown(rope['mrope_interleaved'])}, which is not known."
        )
    return RotaryAxes(sections=tuple(rope.get("mrope_section") or sections), interleaved=interleaved)


def axes(data: Mapping[str, Any]) -> RotaryAxes:
    """Return the axes of positions of Qwen2-VL and Qwen2.5-VL."""
    return read_axes(data, (16, 24, 24), interleaved=False)


def marks(tokenizer_config: Mapping[str, Any]) -> GridMarks:
    """Return the text of the placeholder, as the tokenizer names it."""
    places = (tokenizer_config, *(tokenizer_config.get(place) or {} for place in NAMED_TOKENS))
    named = next((place["image_token"] for place in places if isinstance(place, dict) and "image_token" in place), None)
    token = "<|image_pad|>" if named is None else named
    return GridMarks(picture=str(token.get("content") if isinstance(token, dict) else token))


NAMED_TOKENS = ("extra_special_tokens", "model_specific_special_tokens")
"""Fields of tokenizer_config.json that name special tokens."""

PROCESSOR_FIELDS = ("auto_map", "chat_template", "processor_class", "video_processor")

FAMILY = PictureTextFamily(
    summary="Qwen2-VL: pictures of any size, and text; videos are left out",
    read=read,
    tensors=tower_tensors({"up": "fc1", "down": "fc2"}, {"norm": "ln_q", "input": "mlp.0", "output": "mlp.2"}),
    marks=marks,
    processor="grid",
    axes=axes,
    processor_fields=PROCESSOR_FIELDS,
)
