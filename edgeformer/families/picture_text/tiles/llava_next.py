"""LLaVA-NeXT (1.6): LLaVA over the tiles of a grid, whose states are put together in rows.

Source: transformers/models/llava_next/modeling_llava_next.py, processing_llava_next.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import TowerTextConfig
from edgeformer.errors import ConfigError
from edgeformer.families._family import Fields
from edgeformer.families.picture_text import Seeing
from edgeformer.families.picture_text.one_size import llava
from edgeformer.manifest.placeholders.rows import RowsMarks

PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
"""The grids of a config.json that has none, in pixels."""

TENSORS = {**llava.TENSORS, "newline.state": "image_newline"}


def read(fields: Fields) -> Seeing:
    """Read the tower, the layers that are read of it, and the projector."""
    fields.choice("use_image_newline_parameter", {True: None}, True)
    return with_newline(llava.read_llava(fields))


def with_newline(seeing: Seeing) -> Seeing:
    """Return what is read where a learned state ends rows of states, which must be those of patches."""
    if seeing.keeps_prefix and seeing.tower.prefix_tokens:
        raise ConfigError(
            "config.json has vision_feature_select_strategy = 'full', and its tower has a class token, which has no "
            "place in rows of patches."
        )
    vision = seeing.tower
    assert vision.kind == "vision", "as all of LLaVA's are"
    grid = vision.patches.grid
    if grid.rows != grid.columns:
        raise ConfigError(f"config.json has a tower of {grid.rows} × {grid.columns} patches; they must be a square.")
    return replace(seeing, newline=True)


def marks(tokenizer_config: Mapping[str, Any]) -> RowsMarks:
    """Return the text of the placeholder."""
    return RowsMarks(picture=llava.picture_token(tokenizer_config))


def picture_options(data: Mapping[str, Any], config: TowerTextConfig) -> Mapping[str, Any]:
    """Return the grids, and how many states a tile becomes."""
    return {
        "patches": config.patch_grid.rows,
        "grids_of_model": data.get("image_grid_pinpoints") or PINPOINTS,
    }


FAMILY = replace(
    llava.FAMILY,
    summary="LLaVA-NeXT (1.6): pictures in the tiles of a grid, and text",
    read=read,
    tensors=TENSORS,
    marks=marks,
    processor="any_resolution",
    picture_options=picture_options,
)
