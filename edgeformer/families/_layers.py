"""Functions for models whose layers differ in their attention: windows, chunks, layer types."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from edgeformer.config import DecoderConfig, EncoderConfig, FeedForwardConfig, RotaryConfig, StackConfig
from edgeformer.config.heads import EncoderHead
from edgeformer.errors import ConfigError
from edgeformer.families._family import Fields

Config = TypeVar("Config", bound=StackConfig)

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
"""Names of layer types in transformers (configuration_utils.py)."""


def vary_attention(config: Config, changes: Iterable[Mapping[str, Any]]) -> Config:
    """Return the config with changed fields of AttentionConfig, `changes` per layer; others have no attention."""
    blocks = (
        block if block.attention is None else replace(block, attention=replace(block.attention, **change))
        for block, change in zip(config.blocks, changes, strict=True)
    )
    return replace(config, blocks=tuple(blocks))


def vary_feed_forward(config: Config, *, gated: bool, bias: bool, output_bias: bool | None = None) -> Config:
    """Return the config with other gates and biases in every block that has a plain feed-forward."""
    blocks = (
        replace(block, feed_forward=replace(block.feed_forward, gated=gated, bias=bias, output_bias=output_bias))
        if isinstance(block.feed_forward, FeedForwardConfig)
        else block
        for block in config.blocks
    )
    return replace(config, blocks=tuple(blocks))


def bidirectional(config: DecoderConfig, head: EncoderHead | None = None) -> EncoderConfig:
    """Return the encoder of a decoder's blocks, whose attention then sees all tokens, with another head."""
    encoder = EncoderConfig.of_decoder(config, head)
    return vary_attention(encoder, [{"causal": False}] * len(encoder.blocks))


def both_ways(config: DecoderConfig, head: EncoderHead | None) -> EncoderConfig:
    """Return the encoder of a decoder with `is_causal` = false; head: as in `bidirectional`.

    A window then is as wide on each side as it was, and includes its last token. Source: masking_utils.py of
    transformers, create_bidirectional_sliding_window_mask.
    """
    encoder = bidirectional(config, head)
    windows = (attention.window for attention in encoder.attentions)
    wider = (None if window is None or window + 1 >= config.context_length else window + 1 for window in windows)
    return vary_attention(encoder, [{"window": window} for window in wider])


def read_layer_types(fields: Fields, otherwise: list[str], local: str = SLIDING) -> list[str]:
    """Return the attention type of each layer, `local` or full, from `layer_types`.

    otherwise: the types if config.json has none. Raises ConfigError for another type or number of layers.
    """
    types: list[str] = fields.take("layer_types", otherwise)
    for unknown in sorted(set(types) - {FULL, local}):
        raise ConfigError(f"config.json's layer_types have {unknown!r}; supported here: {FULL}, {local}.")
    return of_each_layer("layer_types", types, len(otherwise))


def every_nth_full(n: int, layers: int) -> list[str]:
    """Return the attention types of layers that are sliding, except that every n-th one is full."""
    return [SLIDING if (layer + 1) % n else FULL for layer in range(layers)]


def of_each_layer(name: str, values: list[Any], layers: int) -> list[Any]:
    """Return the values of a field with one value per layer. Raises ConfigError for another number of values."""
    if len(values) != layers:
        raise ConfigError(f"config.json has {name} of {len(values)} layers and num_hidden_layers = {layers}.")
    return values


def check_layer_types(fields: Fields, kind: str, layers: int, *names: str) -> None:
    """Read fields that name the type of each layer of a model whose layers are all of one. Raises ConfigError."""
    for name in names:
        unknown = set(of_each_layer(name, fields.take(name, [kind] * layers), layers)) - {kind}
        if unknown:
            raise ConfigError(f"config.json's {name} have {sorted(map(str, unknown))[0]!r}; supported here: {kind}.")


def read_used_window(fields: Fields) -> int | None:
    """Return `sliding_window`, or None without `use_sliding_window`."""
    window: int | None = fields.take("sliding_window", None)
    return window if fields.take("use_sliding_window") else None


def within(length: int | None, config: StackConfig) -> int | None:
    """Return the length of a window or a chunk, or None if it is as long as the context and has no effect."""
    return None if length is None or length >= config.context_length else length


def without_rotary_where_full(config: DecoderConfig, types: list[str]) -> DecoderConfig:
    """Return the config without positions in layers with full attention; types: attention type per layer."""
    return vary_attention(config, ({"rotary": None} if kind == FULL else {} for kind in types))


def with_windows(
    config: DecoderConfig, types: list[str], window: int | None, rotary: RotaryConfig | None = None
) -> DecoderConfig:
    """Return the config with windows in sliding layers.

    types: attention type per layer. rotary: of sliding layers, where it differs. Raises ConfigError if there are
    sliding layers and no window.
    """
    if window is None and SLIDING in types:
        raise ConfigError("config.json has sliding layers (layer_types), and no sliding_window is in use.")
    sliding = {"window": within(window, config), **({} if rotary is None else {"rotary": rotary})}
    return vary_attention(config, (sliding if kind == SLIDING else {} for kind in types))


def share_caches(config: DecoderConfig, types: list[str], shared: int) -> DecoderConfig:
    """Return the config whose last `shared` layers read the keys and values of the last layer of their type before.

    types: attention type per layer. Raises ConfigError if there is no such layer.
    """
    first = len(types) - shared
    if shared < 0 or set(types[first:]) - set(types[: max(first, 0)]):
        raise ConfigError(
            f"config.json has num_kv_shared_layers = {shared}, and the {max(first, 0)} layers before those are not of "
            "all types in layer_types, so that there are no keys and values to share."
        )
    last = {kind: layer for layer, kind in enumerate(types[:first])}
    nothing: Mapping[str, Any] = {}
    of_its_own = {"value_norm": None, "value_from_key": False}
    changes = (nothing if layer < first else {"shares": last[kind], **of_its_own} for layer, kind in enumerate(types))
    return vary_attention(config, changes)
