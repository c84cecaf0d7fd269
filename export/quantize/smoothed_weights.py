"""Weights that were smoothed: `smooth` says why, and what makes them the same model."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from edgeformer.quantization import SmoothedNorm


class Smoothed(Mapping[str, Tensor]):
    """The weights of a smoothed model. factors: powers of two s float32 [K] of each norm."""

    def __init__(self, weights: Mapping[str, Tensor], factors: Mapping[SmoothedNorm, Tensor]):
        self._weights = weights
        self._factors: dict[str, Tensor] = {}
        for norm, s in factors.items():
            self._factors |= dict.fromkeys(norm.parameters, 1 / s) | dict.fromkeys(norm.readers, s)

    def __getitem__(self, name: str) -> Tensor:
        # A product of float16 or bfloat16 with the factors is float32, which has room for them.
        return self._weights[name] * self._factors[name] if name in self._factors else self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
