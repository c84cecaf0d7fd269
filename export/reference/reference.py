"""References of any module: in float64 what graphs are measured by, in the graph's own precision what rounding alone
does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.cache_scales import CacheScales
from edgeformer.export.reference.quantized_activations import round_activations
from edgeformer.export.reference.quantized_caches import CacheEntrance, RoundedCaches
from edgeformer.export.reference.summation_orders import T, run_in_summation_orders
from edgeformer.export.reference.weight_streaming import streamed
from edgeformer.layers import Cache
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import WeightFormat


class Reference:
    """A module over given weights, which are read when it runs and let go after.

    Unless its model spec says that it streams, all of its parameters are in memory at once, in `dtype`. entrance: what
    its keys and values pass before attention reads them. orders: in how many orders of its sums it runs each time.
    """

    def __init__(
        self,
        model_spec: ModelSpec,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float64,
        entrance: CacheEntrance | None = None,
        orders: int = 1,
    ):
        with torch.device("meta"):
            self.module: Any = model_spec.build(dtype).eval()
        self.dtype = dtype
        self._model_spec = model_spec
        self._weights = weights
        self._entrance = entrance
        self._orders = orders
        constants = model_spec.constants()
        first: dict[int, str] = {}
        for name, buffer in list(self.module.named_buffers(remove_duplicate=False)):
            owner, _, last = name.rpartition(".")
            value = constants[first.setdefault(id(buffer), name)]  # a buffer of several names is given by its first
            value = value.to(dtype) if value.is_floating_point() else value
            setattr(self.module.get_submodule(owner), last, value)

    def run(self, input_ids: Tensor, past: Callable[[int], Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        """Let a decoder read texts of equal length int64 [B, S]: logits after every token, [B, S, V], and the present
        caches.

        past: keys and values of a layer before the text; by default none. With a past, no caches come back. Attention
        is causal, so the logits of a prefix are a prefix of the logits.
        """
        batch, length = input_ids.shape
        before = past or (lambda layer: self.empty_cache(batch))
        caches = [
            (key.to(self.dtype), value.to(self.dtype))
            for key, value in map(before, range(self._model_spec.cache.num_layers))
        ]
        total = length + caches[0][0].shape[2]
        logits, presents = self.forward(input_ids, torch.ones(batch, total, dtype=torch.int64), caches)
        return logits.to(self.dtype), list(presents) if past is None else []

    def empty_cache(self, batch: int) -> Cache:
        """Key and value of one layer before the first token."""
        geometry = self._model_spec.cache
        empty = torch.empty(batch, geometry.num_kv_heads, 0, geometry.head_dim, dtype=self.dtype)
        return empty, empty

    def forward(self, *inputs: Any) -> Any:
        """What the module itself returns; one of the user keeps the contract only once that has been checked."""

        def run() -> Any:
            with self.loaded(), self._entrance or nullcontext():
                return self.module(*inputs)

        return self.in_summation_orders(run)

    def in_summation_orders(self, run: Callable[[], T]) -> T:
        """What a run of `module` gives, in all orders of its sums; it is loaded by the run itself."""
        return run_in_summation_orders(self.module, self._orders, run)

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """For the length of a `with` block, `module` has its parameters."""
        filled = streamed if self._model_spec.streams else _filled
        with torch.no_grad(), filled(self.module, self._weights, self.dtype):
            yield


@contextmanager
def _filled(module: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Give a module all of its parameters; one of several names is read by its first."""
    places: dict[str, list[tuple[nn.Module, str]]] = {}
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, _, last = name.rpartition(".")
        places.setdefault(first.setdefault(id(parameter), name), []).append((module.get_submodule(owner), last))
    empty = dict(module.named_parameters())
    try:
        for name, owners in places.items():
            _put(owners, nn.Parameter(weights[name].to(dtype), requires_grad=False))
        yield
    finally:
        for name, owners in places.items():
            _put(owners, empty[name])


def _put(owners: Iterable[tuple[nn.Module, str]], parameter: nn.Parameter) -> None:
    for owner, last in owners:
        owner._parameters[last] = parameter


def references(
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
    activations: Mapping[str, WeightFormat] | None = None,
    scales: CacheScales | None = None,
    orders: int = 1,
) -> tuple[Reference, Reference]:
    """The module over weights as a graph stores them: in float64, and in the graph's own arithmetic.

    The latter rounds what the graph rounds. activations: the formats of weights whose products round their inputs;
    scales: of an int8 cache; orders: in how many orders of its sums the latter runs.
    """
    stored = Rounded(weights, dtype)
    exact = Reference(model_spec, stored)
    eager = Reference(model_spec, stored, dtype, None if scales is None else RoundedCaches(scales), orders)
    round_activations(eager.module, activations or {})
    return exact, eager


class Rounded(Mapping[str, Tensor]):
    """Weights as a graph stores them: rounding them is the user's choice of precision, not an error of the graph."""

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype):
        self._weights = weights
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name].to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
