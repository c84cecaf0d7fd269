"""Run any module in eager PyTorch: in float64 as the reference of a graph, and in the graph's own precision.

The errors of the latter show how much rounding alone changes the outputs of this model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.expert_weights import LazyWeights, read_expert, read_rows
from edgeformer.contract.tensors import StateTensor
from edgeformer.export.reference.quantized_activations import round_activations
from edgeformer.export.reference.quantized_caches import CacheEntrance
from edgeformer.export.reference.summation_orders import T, run_in_summation_orders
from edgeformer.export.reference.weight_streaming import streaming_parameters
from edgeformer.layers import LayerCache
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.models.model_spec import ModelSpec
from edgeformer.models.without_values import without_values


class Reference:
    """A module that reads its parameters from `weights` for each run and releases them afterwards.

    A module whose model spec has `streams` set holds the parameters of one layer at a time; any other holds all of them
    in `dtype` while it runs. entrance: a mode that changes keys and values before attention reads them, such as the
    rounding of a quantized cache. summation_orders: the number of summation orders of each run (`summation_orders.py`).
    exact: another reference, beside which the errors of several orders are measured; None for one order.
    """

    def __init__(
        self,
        model_spec: ModelSpec,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float64,
        entrance: CacheEntrance | None = None,
        summation_orders: int = 1,
        exact: "Reference | None" = None,
    ):
        assert summation_orders == 1 or exact is not None, "errors of several orders are measured beside another one"
        with without_values():
            self.module: Any = model_spec.build(dtype).eval()
        self.dtype = dtype
        self._model_spec = model_spec
        self.weights = weights
        self._entrance = entrance
        self._summation_orders, self._exact = summation_orders, exact
        constants = model_spec.constants()
        first: dict[int, str] = {}
        for name, buffer in list(self.module.named_buffers(remove_duplicate=False)):
            owner, _, last = name.rpartition(".")
            value = constants[first.setdefault(id(buffer), name)]  # a shared buffer is stored by its first name
            value = value.to(dtype) if value.is_floating_point() else value
            setattr(self.module.get_submodule(owner), last, value)

    def run(
        self,
        input_ids: Tensor,
        past: Callable[[int], LayerCache] | None = None,
        past_length: int = 0,
        request_length: int | None = None,
    ) -> tuple[Tensor, list[LayerCache]]:
        """Run a decoder on texts of equal length, int64 [B, S]; return logits [B, S, V] and each layer's present cache.

        past: returns what a layer keeps of the `past_length` tokens that come before the text, such as keys and values
        [B, K, T, D]; by default none. With a past, the returned list of caches is empty. Models are causal, so the
        logits of a prefix of the text are a prefix of the logits.
        request_length: where rotary embeddings depend on it, the most tokens that the texts will have; None for the
        context length.
        """
        batch, length = input_ids.shape
        layers = range(self._model_spec.cache.num_layers)
        caches = self.empty_caches(batch)
        if past is not None:
            given = [each for layer in layers for each in past(layer)]
            tensors = zip(self._model_spec.cache.tensors(), given, strict=True)
            caches = self._model_spec.cache.by_layer([each.to(self._dtype_of(tensor)) for tensor, each in tensors])
        total = length + past_length
        mask, others = torch.ones(batch, total, dtype=torch.int64), dict[str, Tensor]()
        if self._model_spec.short_context is not None:
            others["request_length"] = torch.tensor([request_length or self._model_spec.context_length])
        logits, presents = self.forward(input_ids, mask, caches, **others)
        return logits.to(self.dtype), list(presents) if past is None else []

    def empty_caches(self, batch: int) -> list[LayerCache]:
        """Return what each layer keeps before the first token: no keys and values, and states of zeros."""
        geometry = self._model_spec.cache
        return geometry.by_layer(
            [torch.zeros(tensor.shape(batch, 0), dtype=self._dtype_of(tensor)) for tensor in geometry.tensors()]
        )

    def _dtype_of(self, tensor: StateTensor) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32) if tensor.single else self.dtype

    def forward(self, *inputs: Any, **others: Tensor) -> Any:
        """Return what the module returns. A user's module may break the contract until `check_contract` has run."""

        def run(reference: Reference) -> Any:
            with reference.caching():
                return reference.module(*map(reference._as_own, inputs), **others)

        return self.in_summation_orders(run)

    def _as_own(self, given: Any) -> Any:
        """Return an input, or a structure of tuples and lists, whose floats are as wide as those of the module."""
        if isinstance(given, tuple | list):
            return type(given)(map(self._as_own, given))
        is_float = isinstance(given, Tensor) and given.is_floating_point()
        return given.to(torch.promote_types(given.dtype, self.dtype)) if is_float else given

    def in_summation_orders(self, run: Callable[["Reference"], T]) -> T:
        """Call `run`, which loads and runs a reference's module, once for each order; return the typical outputs."""
        exact = self if self._exact is None else self._exact
        return run_in_summation_orders(self.module, self._summation_orders, lambda: run(self), lambda: run(exact))

    @contextmanager
    def caching(self) -> Iterator[None]:
        """Be `loaded`, and let attention read keys and values as the cache of the bundle has them."""
        with self.loaded(), self._entrance or nullcontext():
            yield

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Give `module` its parameters for the duration of a `with` block."""
        loading = streaming_parameters if self._model_spec.streams else _all_parameters
        with torch.no_grad(), loading(self.module, self.weights, self.dtype):
            yield


@contextmanager
def _all_parameters(module: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Give a module all of its parameters; a shared parameter is read by its first name."""
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
    entrance: CacheEntrance | None = None,
    summation_orders: int = 1,
) -> tuple[Reference, Reference]:
    """Return a model over the weights that a graph stores: in float64, and in `dtype` with the graph's own rounding.

    activations: formats of the weights whose products round their inputs to int8, by parameter name. entrance: what
    rounds keys and values. Both, and the number of summation orders, apply to the second reference alone.
    """
    stored = CastWeights(weights, dtype)
    float64 = Reference(model_spec, stored)
    eager = Reference(model_spec, stored, dtype, entrance, summation_orders, float64)
    round_activations(eager.module, activations or {})
    return float64, eager


class CastWeights(LazyWeights):
    """Weights cast to the precision in which a graph stores them.

    Graph and reference both read them, so this rounding is a choice of the user and not an error of the graph.
    """

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype):
        self.weights = weights
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name].to(self._dtype)

    def read_expert(self, name: str, expert: int) -> Tensor:
        """Return one expert of a stacked parameter."""
        return read_expert(self.weights, name, expert).to(self._dtype)

    def read_rows(self, name: str, rows: slice | Tensor) -> Tensor:
        """Return some rows of a parameter."""
        return read_rows(self.weights, name, rows).to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)
