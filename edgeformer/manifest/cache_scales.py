"""The scales of a quantized key-value cache.

    int8    integer = clamp(round(value / scale), −128, 127), ties to even     value ≈ scale · integer
    fp8     float8e4m3fn of clamp(value / scale, −448, 448), ties to even      value ≈ scale · float8

Scales of int8 are per channel: each channel of each key-value head has one for keys and one for values, the same for
all tokens. Those of fp8 are one for the keys and one for the values of a layer: a float has the same relative error
wherever its scale puts it. Keys are cached as attention reads them, after their norm and rotation.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, get_args

from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError
from edgeformer.manifest.parts import QuantizedCache

Scales = tuple[tuple[float, ...], ...]
"""Per layer: one scale for each of the K·D channels (K key-value heads of D channels), head by head; or one for all."""

LARGEST: dict[QuantizedCache, float] = {"int8": 127, "fp8": 448}
"""The largest number of both signs that a type of caches has."""


@dataclass(frozen=True, kw_only=True)
class CacheScales:
    """The scales of the keys and of the values of each layer. precision: the type of what they scale.

    In JSON the scales of a layer are one string of numbers separated by spaces, which keeps manifests short.
    """

    key: Scales
    value: Scales
    precision: QuantizedCache = "int8"

    def __post_init__(self) -> None:
        for name in ("key", "value"):
            layers = getattr(self, name)
            check(all(0 < each < inf for layer in layers for each in layer), self, name, "positive numbers")
            check(self.is_per_channel or all(len(layer) == 1 for layer in layers), self, name, "one number a layer")

    @property
    def is_per_channel(self) -> bool:
        """Whether every channel has a scale of its own."""
        return self.precision == "int8"

    @property
    def name(self) -> str:
        """The cache in a sentence, with its article: an int8 cache."""
        return f"an {self.precision} cache"

    def to_json(self) -> dict[str, Any]:
        """Return the scales with all of their digits, so that `from_json` restores them exactly.

        The precision is left out where it is int8, as in manifests before there was another.
        """
        scales: dict[str, Any] = {
            name: [" ".join(map(repr, layer)) for layer in getattr(self, name)] for name in ("key", "value")
        }
        return scales if self.precision == "int8" else scales | {"precision": self.precision}

    @classmethod
    def from_json(cls, data: Any, path: str = "") -> "CacheScales":
        """Restore what `to_json` returned. `path` names the place in error messages.

        Raises ConfigError for data of another form and for scales that are not positive and finite.
        """
        place = path or "the document"
        try:
            key, value = (tuple(tuple(map(float, layer.split())) for layer in data[name]) for name in ("key", "value"))
            precision = data.get("precision", "int8")
        except (TypeError, KeyError, ValueError, AttributeError):
            raise ConfigError(f"{place} must have lists of numbers for `key` and `value`.") from None
        if precision not in get_args(QuantizedCache):
            raise ConfigError(f"the precision of {place} must be {' or '.join(get_args(QuantizedCache))}.")
        return cls(key=key, value=value, precision=precision)
