"""Qwen3.5 with pictures: the tower of Qwen3-VL, whose states are read once, and text of Gated DeltaNet and attention.

Source: transformers/models/qwen3_5/modeling_qwen3_5.py.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.config import RotaryAxes
from edgeformer.errors import ConfigError
from edgeformer.families._family import Fields
from edgeformer.families._vision import inner_fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.families.picture_text.any_size.qwen2_vl import PROCESSOR_FIELDS, marks, read_axes
from edgeformer.families.picture_text.any_size.qwen3_vl import DEFAULTS, TENSORS, read_tower


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    tower = inner_fields(fields, DEFAULTS, "qwen3_5_vision")
    if tower.take("deepstack_visual_indexes", []):
        raise ConfigError("config.json has deepstack_visual_indexes, and Qwen3.5 reads the last states of its tower.")
    return read_tower(fields, tower, None)


def axes(data: Mapping[str, Any]) -> RotaryAxes:
    """Return the axes of positions."""
    return read_axes(data, (11, 11, 10), interleaved=True)


FAMILY = PictureTextFamily(
    summary="Qwen3.5: pictures of any size, and text; videos are left out",
    read=read,
    tensors=TENSORS,
    marks=marks,
    processor="grid",
    axes=axes,
    processor_fields=PROCESSOR_FIELDS,
)
