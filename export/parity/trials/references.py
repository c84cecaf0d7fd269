"""Both references of a trial: PyTorch in float64 and in the graph's own precision, and what they computed."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.export.reference.quantized_caches import CacheEntrance
from edgeformer.export.reference.reference import Reference, references
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.models.model_spec import ModelSpec

T = TypeVar("T")


class Original:
    """A model over its original weights, in float64. It remembers what it computed of the last texts.

    weights: by parameter name.
    """

    def __init__(self, model_spec: ModelSpec, weights: Mapping[str, Tensor]):
        self.weights = weights
        self._reference = Reference(model_spec, weights)
        self._last: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None

    def logits(self, texts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the logits [B · S, V] of texts [B, S]."""
        if self._last is None or not np.array_equal(self._last[0], texts):
            self._last = texts, self._reference.run(torch.from_numpy(texts))[0].flatten(0, 1).numpy()
        return self._last[1]


class References:
    """A model in float64 and in eager PyTorch with the graph's own rounding, over the same weights.

    remember: keep what both computed. Trials of the same graphs, such as those with kernels of several SIMD levels,
    then compute the same texts once. earlier: references that may remember what float64 computes of these texts.
    """

    def __init__(
        self,
        model_spec: ModelSpec,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype,
        activations: Mapping[str, WeightFormat] | None,
        entrance: CacheEntrance | None,
        summation_orders: int,
        *,
        remember: bool = False,
        earlier: "References | None" = None,
    ):
        self.float64, self.eager = references(model_spec, weights, dtype, activations, entrance, summation_orders)
        self._known: dict[tuple[Any, ...], Any] | None = {} if remember else None
        self._exact = {} if earlier is None else earlier._known or {}

    def compute(self, function: Callable[[Reference], list[T]], *inputs: NDArray[Any]) -> list[tuple[T, T]]:
        """Call a function, which returns something of some rows, with both references: (float64, eager) by row.

        inputs: all that the results depend on; without any, they are not remembered.
        """
        key = tuple((each.shape, each.dtype.str, np.ascontiguousarray(each).tobytes()) for each in inputs)
        if self._known is not None and key in self._known:
            return self._known[key]
        known = self._exact.get(key) if key else None
        exact = function(self.float64) if known is None else [pair[0] for pair in known]
        computed = list(zip(exact, function(self.eager), strict=True))
        if self._known is not None and key:
            self._known[key] = computed
        return computed
