"""Both references of a trial: PyTorch in float64 and in the graph's own precision, and what they computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.export.parity.tolerances import longest_sum
from edgeformer.export.reference.quantized_caches import CacheEntrance
from edgeformer.export.reference.reference import Reference, references
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.models.model_spec import ModelSpec

T = TypeVar("T")
Key = tuple[Any, ...]
Known = dict[Key, Any]
"""Results of a reference, by all that they depend on."""


class Original:
    """A model over its original weights, in float32. It remembers what it computed of the last texts.

    What rounding to 16, 8 or 4 bits changes is far larger than the errors of float32: for SmolLM2 these are a mean KL
    of 9e-12 nats, while bfloat16 costs 5.7e-5. float64 takes twice as long.
    weights: by parameter name.
    """

    def __init__(self, model_spec: ModelSpec, weights: Mapping[str, Tensor]):
        self.weights = weights
        self._model_spec = model_spec
        self._last: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None

    def logits(self, texts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits [B · S, V] of texts [B, S]."""
        if self._last is None or not np.array_equal(self._last[0], texts):
            self._last = texts, self.logits_over(self.weights, texts)
        return self._last[1]

    def logits_over(self, weights: Mapping[str, Tensor], texts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits [B · S, V] of texts [B, S] over other weights."""
        reference = Reference(self._model_spec, weights, torch.float32)
        return reference.run(torch.from_numpy(texts))[0].flatten(0, 1).numpy()


class References:
    """A model in float64 and in eager PyTorch with the graph's own rounding, over the same weights.

    exact: what float64 is known to compute with these weights, and where more of it is kept; None to keep nothing.
    Trials of graphs with and without roundings, in other summation orders and with other kernels share it. remember:
    keep what eager PyTorch computes, too, for trials of the same graphs.
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
        exact: Known | None = None,
        remember: bool = False,
    ):
        self.float64, self.eager = references(model_spec, weights, dtype, activations, entrance, summation_orders)
        self._known: tuple[Known | None, Known | None] = exact, {} if remember else None

    @property
    def longest_sum(self) -> int:
        """The largest number of products that a linear layer of the model adds up."""
        return longest_sum(self.float64.module)

    def compute(self, function: Callable[[Reference], T], *inputs: NDArray[Any]) -> tuple[T, T]:
        """Return what a function returns of both references: float64 and eager.

        inputs: all that the results depend on; without any, they are not remembered.
        """
        found = []
        for reference, known in zip((self.float64, self.eager), self._known, strict=True):
            if known is None or not inputs:
                found.append(function(reference))
                continue
            key = _key(inputs)
            if key not in known:
                known[key] = function(reference)
            found.append(known[key])
        return found[0], found[1]

    def compute_rows(
        self, function: Callable[[Reference, NDArray[Any]], list[T]], rows: NDArray[Any], *inputs: NDArray[Any]
    ) -> list[tuple[T, T]]:
        """Return what a function returns of rows [B, …] with both references: (float64, eager) by row.

        Only rows that a reference does not remember are run. inputs: all that the results depend on beside the row.
        """
        both = []
        for reference, known in zip((self.float64, self.eager), self._known, strict=True):
            found = {} if known is None else known
            keys = [_key((row, *inputs)) for row in rows]
            new = [place for place, key in enumerate(keys) if key not in found]
            if new:
                made = function(reference, rows[new])
                found |= dict(zip((keys[place] for place in new), made, strict=True))
            both.append([found[key] for key in keys])
        return list(zip(*both, strict=True))


def _key(inputs: Sequence[NDArray[Any]]) -> Key:
    """Return what distinguishes arrays: their shapes, types and bytes."""
    return tuple((each.shape, each.dtype.str, np.ascontiguousarray(each).tobytes()) for each in inputs)
