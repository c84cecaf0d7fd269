"""The tensors of a decoder graph: their names, in order, and the geometry of its cache.

Both sides of a bundle agree here: `edgeformer.export` writes graphs of this form and `edgeformer.runtime` binds them.

    input_ids int64 [batch_size, sequence_length]; attention_mask int64 [batch_size, total_sequence_length]
    past_key_values.{i}.key|value [batch_size, num_kv_heads, past_sequence_length, head_dim]
    → logits float32 [batch_size, sequence_length, vocab_size]; present.{i}.key|value, the past with the new tokens in
    it
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CacheGeometry:
    """The key/value cache of a decoder: the same two numbers in every layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def elements(self, batch_size: int, capacity: int, windows: Sequence[int | None] = ()) -> int:
        """Elements of a cache for `batch_size` rows of `capacity` tokens: keys and values of all layers.

        windows: of each layer, the most tokens that it keeps; None for all.
        """
        kept = [min(window or capacity, capacity) for window in windows or [None] * self.num_layers]
        return 2 * sum(kept) * batch_size * self.num_kv_heads * self.head_dim


def past_names(geometry: CacheGeometry) -> list[str]:
    """past_key_values.0.key, past_key_values.0.value, past_key_values.1.key, …"""
    return _cache_names("past_key_values", geometry)


def present_names(geometry: CacheGeometry) -> list[str]:
    """present.0.key, present.0.value, present.1.key, …"""
    return _cache_names("present", geometry)


def input_names(geometry: CacheGeometry) -> list[str]:
    """Every input of a decoder graph, in order."""
    return ["input_ids", "attention_mask", *past_names(geometry)]


def output_names(geometry: CacheGeometry) -> list[str]:
    """Every output of a decoder graph, in order."""
    return ["logits", *present_names(geometry)]


def _cache_names(prefix: str, geometry: CacheGeometry) -> list[str]:
    return [f"{prefix}.{layer}.{part}" for layer in range(geometry.num_layers) for part in ("key", "value")]
