"""Layers of one model that differ in their attention: windows, chunks, and which layers have them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from edgeformer.config import DecoderConfig, StackConfig
from edgeformer.errors import ConfigError
from edgeformer.families._family import Fields

Config = TypeVar("Config", bound=StackConfig)

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
"""Layer types of transformers (configuration_utils.py)."""


def vary_attention(config: Config, changes: Iterable[Mapping[str, Any]]) -> Config:
    """Give the attention of each layer other fields."""
    pairs = zip(config.blocks, changes, strict=True)
    blocks = (replace(block, attention=replace(block.attention, **change)) for block, change in pairs)
    return replace(config, blocks=tuple(blocks))


def read_layer_types(fields: Fields, otherwise: list[str], local: str = SLIDING) -> list[str]:
    """Read `layer_types`: for each layer `local` or full attention; otherwise: where config.json doesn't say."""
    types: list[str] = fields.take("layer_types", otherwise)
    for unknown in sorted(set(types) - {FULL, local}):
        raise ConfigError(f"config.json's layer_types have {unknown!r}; supported here: {FULL}, {local}.")
    return of_each_layer("layer_types", types, len(otherwise))


def of_each_layer(name: str, values: list[Any], layers: int) -> list[Any]:
    """Return the values of a field that has one for each layer, or raise a ConfigError."""
    if len(values) != layers:
        raise ConfigError(f"config.json has {name} of {len(values)} layers and num_hidden_layers = {layers}.")
    return values


def read_used_window(fields: Fields) -> int | None:
    """Read `sliding_window`, which counts only with `use_sliding_window`."""
    window: int | None = fields.take("sliding_window", None)
    return window if fields.take("use_sliding_window") else None


def within(length: int | None, config: StackConfig) -> int | None:
    """Return a window or a chunk, or None where it is as long as the context and so hides nothing."""
    return None if length is None or length >= config.context_length else length


def with_windows(config: DecoderConfig, types: list[str], window: int | None, **local: Any) -> DecoderConfig:
    """Give sliding layers their window; local: what else their attention has."""
    if window is None and SLIDING in types:
        raise ConfigError("config.json has sliding layers (layer_types), and no sliding_window is in use.")
    sliding = {"window": within(window, config), **local}
    return vary_attention(config, (sliding if kind == SLIDING else {} for kind in types))
