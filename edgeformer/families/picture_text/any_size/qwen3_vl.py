"""Qwen3-VL: a tower with a table of positions, states of some of its blocks behind the first blocks of the text model.

Source: transformers/models/qwen3_vl/modeling_qwen3_vl.py, processing_qwen3_vl.py.
"""

from collections.abc import Mapping
from math import isqrt
from typing import Any

from edgeformer.config import FeedForwardConfig, RotaryAxes
from edgeformer.errors import ConfigError, shown
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields
from edgeformer.families._vision import inner_fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.families.picture_text.any_size.qwen2_vl import (
    NORM,
    PROCESSOR_FIELDS,
    ignore_tokens,
    marks,
    read_axes,
    read_grid_tower,
    tower_tensors,
)

DEFAULTS: dict[str, Any] = {
    "depth": 27, "hidden_size": 1152, "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 4304, "num_heads": 16,
    "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}  # fmt: skip


def read(fields: Fields) -> Seeing:
    """Read the tower and the projectors."""
    tower = inner_fields(fields, DEFAULTS | {"deepstack_visual_indexes": [8, 16, 24]}, "qwen3_vl_vision")
    layers, depth = tower.take("deepstack_visual_indexes"), tower.take("depth")
    if layers != sorted(set(layers)) or not all(0 <= layer < depth for layer in layers):
        raise ConfigError(
            f"config.json has deepstack_visual_indexes = {shown(layers)}; they must be blocks of the tower, in order."
        )
    return read_tower(fields, tower, tuple(layer + 1 for layer in layers) or None)


def read_tower(fields: Fields, tower: Fields, deepstack: tuple[int, ...] | None) -> Seeing:
    """Read what the towers of Qwen3-VL and Qwen3.5 have in common. deepstack: see `PictureTextConfig`."""
    ignore_tokens(fields)
    tower.ignore("out_hidden_size")  # that of the text model
    rows = tower.take("num_position_embeddings")
    if isqrt(rows) ** 2 != rows:
        raise ConfigError(f"config.json has num_position_embeddings = {rows}, which make no square.")
    feed_forward = FeedForwardConfig(
        intermediate_size=tower.take("intermediate_size"),
        **tower.choice("hidden_act", ACTIVATIONS),
        gated=False,
        bias=True,
    )
    return read_grid_tower(
        tower,
        tower.take("hidden_size"),
        feed_forward,
        NORM,
        patch_bias=True,
        table_side=isqrt(rows),
        deepstack=deepstack,
    )


def axes(data: Mapping[str, Any]) -> RotaryAxes:
    """Return the axes of positions."""
    return read_axes(data, (24, 20, 20), interleaved=True)


PARTS = ("norm", "linear_fc1", "linear_fc2")
"""Parts of a projector in the checkpoint."""

TENSORS = {
    **tower_tensors(
        {"up": "linear_fc1", "down": "linear_fc2"},
        dict(zip(("norm", "input", "output"), PARTS, strict=True)),
    ),
    "tower.position_embedding": "visual.pos_embed",
}

FAMILY = PictureTextFamily(
    summary="Qwen3-VL: pictures of any size in several blocks of the text model, and text; videos are left out",
    read=read,
    tensors={
        **TENSORS,
        **{
            f"deepstack.*.{ours}": f"visual.deepstack_merger_list.*.{theirs}"
            for ours, theirs in zip(("norm", "input", "output"), PARTS, strict=True)
        },
    },
    marks=marks,
    processor="grid",
    axes=axes,
    processor_fields=PROCESSOR_FIELDS,
)
