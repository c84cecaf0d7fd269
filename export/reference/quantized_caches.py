"""Where keys and values of eager PyTorch enter the cache of their layer, and what an int8 cache makes of them there.

onnxruntime's kernel rounds new keys and values first and attends to what it has rounded, the new tokens included, so
eager PyTorch that hands its attention rounded ones computes the same (measured: docs/explanation/kv-cache.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from edgeformer import ops
from edgeformer.cache_scales import CacheScales, Scales
from edgeformer.errors import ExportError
from edgeformer.ops.token_positions import new_positions

ATTENTION = torch.ops.edgeformer.group_query_attention.default
ROTARY = torch.ops.edgeformer.rotary_embedding.default

Turn = tuple[int, bool]
"""How keys are rotated: pairs of a head, and whether they are neighbours; `ops.rotary_embedding` says more."""


class CacheEntrance(TorchDispatchMode, ABC):
    """While it is active, keys and values pass `store` before attention reads them.

    Works for any module, since it stands at the op. Layers are counted by its calls: a forward must call attention once
    for each cache, in their order, and `check_layers` says whether it did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = 0
        self._turns: dict[int, Turn] = {}

    def __enter__(self) -> "CacheEntrance":
        self.layers = 0
        self._turns.clear()
        super().__enter__()
        return self

    @abstractmethod
    def store(self, layer: int, key: Tensor, value: Tensor, turn: Turn | None) -> tuple[Tensor, Tensor]:
        """What attention reads and caches instead of keys and values [B, S, K·D]; turn: how the keys were rotated."""

    def check_layers(self, num_layers: int) -> None:
        """Raise ExportError unless attention was called once for each cache."""
        if self.layers != num_layers:
            raise ExportError(
                f"an int8 cache needs a module that calls attention once for each of its {num_layers} caches, in their "
                f"order, and this one called it {self.layers} times. Leave cache_precision out."
            )

    def __torch_dispatch__(
        self, function: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for every op."""
        if function not in (ATTENTION, ROTARY):
            return function(*args, **(kwargs or {}))
        names = (argument.name for argument in function._schema.arguments)
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        if function is ROTARY:
            self._turns[given["num_heads"]] = given["cos"].shape[-1], given["interleaved"]
            return function(**given)
        _prepare(given, self._turns)
        # Keys are rotated on their own, if at all, and as many heads are theirs.
        turn = self._turns.get(given["num_kv_heads"])
        given["key"], given["value"] = self.store(self.layers, given["key"], given["value"], turn)
        self.layers += 1
        self._turns.clear()
        return function(**given)


def _prepare(given: dict[str, Any], turns: dict[int, Turn]) -> None:
    """Do before attention what it was asked to do itself: unpack queries, keys and values, and rotate them."""
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
        turns[kv_heads] = cos.shape[-1], interleaved


class RoundedCaches(CacheEntrance):
    """Rounds keys and values as an int8 cache of these scales does."""

    def __init__(self, scales: CacheScales):
        super().__init__()
        self._scales = tensors(scales.key), tensors(scales.value)

    def store(self, layer: int, key: Tensor, value: Tensor, turn: Turn | None) -> tuple[Tensor, Tensor]:
        """Both, rounded."""
        keys, values = self._scales
        return rounded(key, keys[layer]), rounded(value, values[layer])


def tensors(scales: Scales) -> list[Tensor]:
    """Scales of each layer as the graph has them: float32 [K·D]."""
    return [torch.tensor(layer, dtype=torch.float32) for layer in scales]


def integers(x: Tensor, scales: Tensor) -> Tensor:
    """x over scales that broadcast to it, as whole numbers of x's dtype: int8's range, ties to even."""
    return (x * scales.reciprocal().to(x.dtype)).round().clamp(-128, 127)


def rounded(x: Tensor, scales: Tensor) -> Tensor:
    """x, through the integers and back."""
    return integers(x, scales) * scales.to(x.dtype)
