"""LLaVA-OneVision: LLaVA-NeXT with SigLIP, more grids, and as many states of a picture as nine tiles have.

A picture that is not alone in its prompt is a square of one tile, as its processor has it.
Source: transformers/models/llava_onevision/modeling_llava_onevision.py, processing_llava_onevision.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import TowerTextConfig
from edgeformer.errors import ConfigError, shown
from edgeformer.families._family import Fields
from edgeformer.families.picture_text import Seeing
from edgeformer.families.picture_text.one_size import llava
from edgeformer.families.picture_text.tiles import llava_next

SIGLIP_384: dict[str, Any] = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14,
    "image_size": 384, "num_hidden_layers": 26, "num_attention_heads": 16, "vision_use_head": False,
}  # fmt: skip
"""The tower of a config.json that has none."""
PINPOINTS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
"""The grids of a config.json that has none, in pixels."""
LIMIT = "anyres_max_"
"""Beginning of `vision_aspect_ratio`, before the number of tiles."""


def read(fields: Fields) -> Seeing:
    """Read the tower, the layers that are read of it, and the projector."""
    fields.choice("use_image_newline_parameter", {True: None}, True)
    fields.ignore("video_token_index", "video_token_id")
    _most_tiles(fields.take("vision_aspect_ratio", f"{LIMIT}9"))
    return llava_next.with_newline(llava.read_llava(fields, SIGLIP_384, layer=-1, strategy="full"))


def _most_tiles(ratio: Any) -> int:
    """Return the number of tiles beyond which states are interpolated, of `vision_aspect_ratio`."""
    number = str(ratio).removeprefix(LIMIT)
    if not number.isdecimal() or int(number) == 0 or str(ratio) == number:
        raise ConfigError(
            f"config.json has vision_aspect_ratio = {shown(ratio)}; it must be {LIMIT}9, or another number."
        )
    return int(number)


def picture_options(data: Mapping[str, Any], config: TowerTextConfig) -> Mapping[str, Any]:
    """Return the grids, how many states a tile becomes, and their limit."""
    return {
        "patches": config.patch_grid.rows,
        "grids_of_model": data.get("image_grid_pinpoints") or PINPOINTS,
        "max_tiles": _most_tiles(data.get("vision_aspect_ratio") or f"{LIMIT}9"),
        "squares": True,
    }


FAMILY = replace(
    llava.FAMILY,
    summary="LLaVA-OneVision: a picture in the tiles of a grid, or several as squares, and text; no videos",
    read=read,
    tensors=llava_next.TENSORS,
    marks=llava_next.marks,
    processor="any_resolution",
    picture_options=picture_options,
    processor_fields=(
        *llava.FAMILY.processor_fields,
        "num_image_tokens",
        "video_processor",
        "video_token",
        "vision_aspect_ratio",
    ),
)
