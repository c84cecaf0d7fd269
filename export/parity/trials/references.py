"""Both references of a trial: PyTorch in float64 and in the graph's own precision, and what they computed."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.export.reference.reference import Reference, references
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.models.model_spec import ModelSpec

T = TypeVar("T")


class References:
    """A model in float64 and in eager PyTorch with the graph's own rounding, over the same weights.

    remember: keep what both computed. Trials of the same graphs, such as those with kernels of several SIMD levels,
    then compute the same texts once.
    """

    def __init__(
        self,
        model_spec: ModelSpec,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype,
        activations: Mapping[str, WeightFormat] | None,
        scales: CacheScales | None,
        summation_orders: int,
        *,
        remember: bool = False,
    ):
        self.float64, self.eager = references(model_spec, weights, dtype, activations, scales, summation_orders)
        self._known: dict[tuple[Any, ...], Any] | None = {} if remember else None

    def compute(self, function: Callable[[Reference], list[T]], *inputs: NDArray[Any]) -> list[tuple[T, T]]:
        """Call a function, which returns something of some rows, with both references: (float64, eager) by row.

        inputs: all that the results depend on; without any, they are not remembered.
        """
        key = tuple((each.shape, each.dtype.str, np.ascontiguousarray(each).tobytes()) for each in inputs)
        if self._known is not None and key in self._known:
            known: list[tuple[T, T]] = self._known[key]
            return known
        computed = list(zip(function(self.float64), function(self.eager), strict=True))
        if self._known is not None and key:
            self._known[key] = computed
        return computed
