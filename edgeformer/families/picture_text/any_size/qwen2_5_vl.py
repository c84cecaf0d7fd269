"""Qwen2.5-VL: Qwen2-VL whose tower has RMSNorm, gated networks, and attention within windows in most blocks.

Source: transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py, processing_qwen2_5_vl.py.
"""

from typing import Any

from edgeformer.config import FeedForwardConfig, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields
from edgeformer.families._vision import inner_fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.families.picture_text.any_size.qwen2_vl import (
    PROCESSOR_FIELDS,
    axes,
    ignore_tokens,
    marks,
    read_grid_tower,
    tower_tensors,
)

DEFAULTS: dict[str, Any] = {
    "depth": 32, "hidden_size": 3584, "hidden_act": "silu", "intermediate_size": 3420, "num_heads": 16,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112, "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    ignore_tokens(fields)
    tower = inner_fields(fields, DEFAULTS, "qwen2_5_vl_vision")
    tower.ignore("out_hidden_size")  # that of the text model
    feed_forward = FeedForwardConfig(
        intermediate_size=tower.take("intermediate_size"), **tower.choice("hidden_act", ACTIVATIONS), bias=True
    )
    norm = NormConfig(kind="rms_norm", eps=1e-6)
    return read_grid_tower(tower, tower.take("hidden_size"), feed_forward, norm, windows=tower.take("window_size"))


FAMILY = PictureTextFamily(
    summary="Qwen2.5-VL: pictures of any size, with windows, and text; videos are left out",
    read=read,
    tensors=tower_tensors(
        {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
        {"norm": "ln_q", "input": "mlp.0", "output": "mlp.2"},
    ),
    marks=marks,
    processor="grid",
    axes=axes,
    processor_fields=PROCESSOR_FIELDS,
)
