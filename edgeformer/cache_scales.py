"""What the integers of an int8 cache mean.

    integer = number / scale, rounded to the nearest (to even, of two), from −128 to 127        number ≈ scale · integer

Every channel of every key-value head has a scale of its own, the same for all tokens, one for keys and one for values.
Keys are cached as attention reads them: after their norm and their rotation.
"""

from dataclasses import dataclass, fields
from math import inf
from typing import Any

from edgeformer.errors import ConfigError
from edgeformer.schema import check

Scales = tuple[tuple[float, ...], ...]
"""Of each layer: K·D numbers, head by head."""


@dataclass(frozen=True, kw_only=True)
class CacheScales:
    """Scales of the keys and of the values of each layer.

    In JSON the numbers of a layer are one string, so that a manifest stays short.
    """

    key: Scales
    value: Scales

    def __post_init__(self) -> None:
        for field in fields(self):
            numbers = [number for layer in getattr(self, field.name) for number in layer]
            check(all(0 < number < inf for number in numbers), self, field.name, "positive numbers")

    def to_json(self) -> dict[str, list[str]]:
        """Numbers as Python writes them, so that they come back as they are."""
        return {
            field.name: [" ".join(map(repr, layer)) for layer in getattr(self, field.name)] for field in fields(self)
        }

    @classmethod
    def from_json(cls, data: Any, path: str = "") -> "CacheScales":
        """Read what `to_json` made; `path` names the place in error messages."""
        try:
            key, value = (tuple(tuple(map(float, layer.split())) for layer in data[name]) for name in ("key", "value"))
        except (TypeError, KeyError, ValueError, AttributeError):
            raise ConfigError(f"{path or 'the document'} must have lists of numbers for `key` and `value`.") from None
        return cls(key=key, value=value)
