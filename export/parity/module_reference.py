"""References of any module: in float64 what graphs are measured by, in the graph's own precision what rounding alone
does.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from edgeformer.blueprint import Blueprint
from edgeformer.export.parity.reference import Reference
from edgeformer.export.parity.streaming import streamed
from edgeformer.layers import Cache


class EagerModel(Protocol):
    """A model that PyTorch computes."""

    def run(self, input_ids: Tensor, past: Callable[[int], Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        """Logits after every token, [B, S, V], and the present caches, for texts of equal length int64 [B, S].

        past: keys and values of a layer before the text; by default none. With a past, no caches come back.
        """


def make_reference(
    blueprint: Blueprint, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float64
) -> EagerModel:
    """The reference of a model over given weights; our own decoder is computed block by block."""
    if blueprint.config is not None:
        return Reference(blueprint.config, weights, dtype)
    return ModuleReference(blueprint, weights, dtype)


class ModuleReference:
    """A whole module, whose parameters are read when it runs and let go after.

    Nobody else's module can be cut into blocks. Unless its blueprint says that it streams, all of its parameters are in
    memory at once, in `dtype`.
    """

    def __init__(self, blueprint: Blueprint, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float64):
        with torch.device("meta"):
            self._module = blueprint.build(dtype).eval()
        self._blueprint = blueprint
        self._weights = weights
        self._dtype = dtype

    def run(self, input_ids: Tensor, past: Callable[[int], Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        """As `EagerModel.run` says."""
        batch, length = input_ids.shape
        before = past or (lambda layer: self.empty_cache(batch))
        caches = [
            (key.to(self._dtype), value.to(self._dtype))
            for key, value in map(before, range(self._blueprint.cache.num_layers))
        ]
        total = length + caches[0][0].shape[2]
        logits, presents = self.forward(input_ids, torch.ones(batch, total, dtype=torch.int64), caches)
        return logits.to(self._dtype), list(presents) if past is None else []

    def empty_cache(self, batch: int) -> Cache:
        """Key and value of one layer before the first token."""
        geometry = self._blueprint.cache
        empty = torch.empty(batch, geometry.num_kv_heads, 0, geometry.head_dim, dtype=self._dtype)
        return empty, empty

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor, caches: list[Cache]) -> Any:
        """What the module itself returns; it keeps the contract only once that has been checked."""
        values = {}
        for name, value in self._blueprint.constants().items():
            values[name] = value.to(self._dtype) if value.is_floating_point() else value
        if self._blueprint.streams:
            with streamed(self._module, self._weights, self._dtype):
                return torch.func.functional_call(self._module, values, (input_ids, attention_mask, caches))
        values |= {name: self._weights[name].to(self._dtype) for name, _ in self._module.named_parameters()}
        return torch.func.functional_call(self._module, values, (input_ids, attention_mask, caches))
