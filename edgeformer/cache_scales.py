"""The scales of an int8 key-value cache.

    integer = clamp(round(value / scale), −128, 127), ties to even        value ≈ scale · integer

Scales are per channel: each channel of each key-value head has one for keys and one for values, the same for all
tokens. Keys are cached as attention reads them, after their norm and rotation.
"""

from dataclasses import dataclass, fields
from math import inf
from typing import Any

from edgeformer.errors import ConfigError
from edgeformer.schema import check

Scales = tuple[tuple[float, ...], ...]
"""Per layer: one scale for each of the K·D channels (K key-value heads of D channels), head by head."""


@dataclass(frozen=True, kw_only=True)
class CacheScales:
    """The scales of the keys and of the values of each layer.

    In JSON the scales of a layer are one string of numbers separated by spaces, which keeps manifests short.
    """

    key: Scales
    value: Scales

    def __post_init__(self) -> None:
        for field in fields(self):
            numbers = [number for layer in getattr(self, field.name) for number in layer]
            check(all(0 < number < inf for number in numbers), self, field.name, "positive numbers")

    def to_json(self) -> dict[str, list[str]]:
        """Return the scales with all of their digits, so that `from_json` restores them exactly."""
        return {
            field.name: [" ".join(map(repr, layer)) for layer in getattr(self, field.name)] for field in fields(self)
        }

    @classmethod
    def from_json(cls, data: Any, path: str = "") -> "CacheScales":
        """Restore what `to_json` returned. `path` names the place in error messages.

        Raises ConfigError for data of another form and for scales that are not positive and finite.
        """
        try:
            key, value = (tuple(tuple(map(float, layer.split())) for layer in data[name]) for name in ("key", "value"))
        except (TypeError, KeyError, ValueError, AttributeError):
            raise ConfigError(f"{path or 'the document'} must have lists of numbers for `key` and `value`.") from None
        return cls(key=key, value=value)
