"""Intercept keys and values of eager PyTorch where they enter the cache of their layer, and round them there.

onnxruntime's kernel rounds new keys and values first and attends to the rounded ones, those of the new tokens included.
Eager PyTorch that passes rounded keys and values to its attention op computes the same (docs/explanation/kv-cache.md).
Only a prompt over an empty cache attends to keys and values as they were before rounding, on CUDA (`attend`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from edgeformer import ops
from edgeformer.errors import ExportError
from edgeformer.manifest.cache_scales import LARGEST, CacheScales, Scales
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import QuantizedCache
from edgeformer.ops.token_positions import new_positions

ATTENTION = torch.ops.edgeformer.group_query_attention.default
ROTARY = torch.ops.edgeformer.rotary_embedding.default

Rotation = tuple[int, bool]
"""Rotated pairs per head of the keys, and whether pairs are neighbours (`interleaved` of `ops.rotary_embedding`)."""


class CacheEntrance(TorchDispatchMode, ABC):
    """While active, pass keys and values to `store` before attention reads them.

    It intercepts the attention op, so it works for any module. Its calls count the layers: a forward must call
    attention once for each cache, in their order, which `check_layers` checks. kv_heads: of the keys and values that
    `store` is given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = 0
        self.kv_heads = 0
        self._rotations: dict[int, Rotation] = {}

    def __enter__(self) -> "CacheEntrance":
        self.layers = 0
        self._rotations.clear()
        super().__enter__()
        return self

    @abstractmethod
    def store(self, layer: int, key: Tensor, value: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Return what attention reads and caches instead of keys and values [B, S, K·D].

        rotation: how the keys were rotated, None if they were not.
        """

    def check_layers(self, num_layers: int) -> None:
        """Raise ExportError unless attention was called once for each cache."""
        if self.layers != num_layers:
            raise ExportError(
                f"a quantized cache needs a module that calls attention once for each of its {num_layers} caches, in "
                f"their order, and this one called it {self.layers} times. Leave cache_precision out."
            )

    def __torch_dispatch__(
        self, function: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle one op; PyTorch calls this for every op."""
        if function not in (ATTENTION, ROTARY):
            return function(*args, **(kwargs or {}))
        names = (argument.name for argument in function._schema.arguments)
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        if function is ROTARY:
            self._rotations[given["num_heads"]] = given["cos"].shape[-1], given["interleaved"]
            return function(**given)
        _prepare(given, self._rotations)
        # Rotations are known by their number of heads: keys have num_kv_heads. They are rotated apart from queries.
        self.kv_heads = given["num_kv_heads"]
        rotation = self._rotations.get(self.kv_heads)
        key, value = self.store(self.layers, given["key"], given["value"], rotation)
        self.layers += 1
        self._rotations.clear()
        return self.attend(partial(function, **given), key, value)

    def attend(self, attention: Callable[..., Any], key: Tensor, value: Tensor) -> Any:
        """Return what attention returns over keys and values that were stored.

        attention: the op with all of its arguments, keys and values before they were stored among them.
        """
        return attention(key=key, value=value)


def _prepare(given: dict[str, Any], rotations: dict[int, Rotation]) -> None:
    """Unpack queries, keys and values and rotate them before attention, if attention was asked to do so."""
    heads, kv_heads = given["num_heads"], given["num_kv_heads"]
    if given["key"] is None:
        head_dim = given["query"].shape[-1] // (heads + 2 * kv_heads)
        sizes = [count * head_dim for count in (heads, kv_heads, kv_heads)]
        given["query"], given["key"], given["value"] = given["query"].split(sizes, -1)
    cos, sin = given.pop("cos", None), given.pop("sin", None)
    if cos is not None:
        interleaved = given.get("rotary_interleaved", False)
        positions = new_positions(given["attention_mask"], given["query"].shape[1])
        for name, count in (("query", heads), ("key", kv_heads)):
            given[name] = ops.rotary_embedding(given[name], positions, cos, sin, count, interleaved)
        rotations[kv_heads] = cos.shape[-1], interleaved


class RoundedCaches(CacheEntrance):
    """Rounds keys and values as a cache with these scales does."""

    def __init__(self, scales: CacheScales):
        super().__init__()
        self._scales, self._precision = (tensors(scales.key), tensors(scales.value)), scales.precision

    def store(self, layer: int, key: Tensor, value: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Return rounded keys and values."""
        keys, values = self._scales
        pairs = (key, keys[layer]), (value, values[layer])
        rounded_key, rounded_value = (fake_quantize_cache(x, scales, self._precision) for x, scales in pairs)
        return rounded_key, rounded_value


class HalfCaches(CacheEntrance):
    """Rounds keys and values as a float16 cache of a float32 graph does."""

    def store(self, layer: int, key: Tensor, value: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Return rounded keys and values."""
        return round_to_half(key), round_to_half(value)


class PerTokenCaches(CacheEntrance):
    """Rounds each key and value of a head by its own largest magnitude, as a cache with scales per token does."""

    def store(self, layer: int, key: Tensor, value: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Return rounded keys and values."""
        rounded_key, rounded_value = (
            round_per_token(x.unflatten(-1, (self.kv_heads, -1))).flatten(-2) for x in (key, value)
        )
        return rounded_key, rounded_value


def round_per_token(x: Tensor) -> Tensor:
    """Return vectors [..., D] rounded to integers of a scale each, the largest of which is 127."""
    scales = x.abs().amax(-1, keepdim=True) / LARGEST["int8"]
    return torch.where(scales == 0, 0, (x / scales).round() * scales)


def round_to_half(x: Tensor) -> Tensor:
    """Return x rounded to float16, in its own type."""
    return x.to(torch.float16).to(x.dtype)


def tensors(scales: Scales) -> list[Tensor]:
    """Return the scales of each layer as the graph stores them, float32 [K·D] or [1]."""
    return [torch.tensor(layer, dtype=torch.float32) for layer in scales]


def integers(x: Tensor, scales: Tensor) -> Tensor:
    """Return x / scales rounded to int8's range, ties to even, in float32 or more. scales: broadcast to x."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # as the kernel does with half precision
    return (wide * scales.reciprocal().to(wide.dtype)).round().clamp(-128, 127)


def floats(x: Tensor, scales: Tensor) -> Tensor:
    """Return x / scales rounded to float8e4m3fn, ties to even; what is out of its range becomes its largest number."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    most = LARGEST["fp8"]
    return (wide * scales.reciprocal().to(wide.dtype)).clamp(-most, most).to(torch.float8_e4m3fn)


def dequantized(stored: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the keys or values that a cache stands for, multiplied in float32 or more and then rounded to a dtype."""
    wide = torch.promote_types(dtype, torch.float32)
    return (stored.to(wide) * scales.to(wide)).to(dtype)


def fake_quantize_cache(x: Tensor, scales: Tensor, precision: QuantizedCache = "int8") -> Tensor:
    """Return x quantized to a precision and back."""
    return dequantized(integers(x, scales) if precision == "int8" else floats(x, scales), scales, x.dtype)


def cache_entrance(manifest: Manifest) -> CacheEntrance | None:
    """Return what rounds the caches of a bundle; None for one whose caches are as its arithmetic."""
    if manifest.plan.half_cache:
        return HalfCaches()
    if manifest.has_scales_per_token:
        return PerTokenCaches()
    return None if manifest.cache_scales is None else RoundedCaches(manifest.cache_scales)
