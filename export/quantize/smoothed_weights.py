"""The weights of a smoothed model; calibrate/smoothing.py explains and chooses the factors."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from edgeformer.quantization import SmoothedNorm


class Smoothed(Mapping[str, Tensor]):
    """Weights whose norms are divided by factors that multiply the columns of the layers that read them.

    factors: for each norm, powers of two s, float32 [K].
    """

    def __init__(self, weights: Mapping[str, Tensor], factors: Mapping[SmoothedNorm, Tensor]):
        self._weights = weights
        self._factors: dict[str, Tensor] = {}
        for norm, s in factors.items():
            self._factors |= dict.fromkeys(norm.parameters, 1 / s) | dict.fromkeys(norm.readers, s)

    def __getitem__(self, name: str) -> Tensor:
        # float16 and bfloat16 weights times float32 factors are float32, whose exponents have room for the result.
        return self._weights[name] * self._factors[name] if name in self._factors else self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
