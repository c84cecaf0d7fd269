"""Figures of error: vectors of a graph and of eager PyTorch, both against float64, position by position."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Logits = NDArray[np.floating]
"""Vectors [positions, V]."""

PIECE = 2**19
"""Elements computed at a time, at least a position: 4 MiB in float64, whose few copies stay in a core's cache."""

NEAR = 1.0
"""Largest difference of a logit up to which a divergence is log Σ p e^d − Σ p d of the differences d, which loses no
digit however small they are; of larger ones the exponential might overflow."""


@dataclass(frozen=True)
class VectorErrors:
    """Errors of vectors at consecutive positions: root mean squares, largest elements, and KL divergences of logits."""

    rmse: Sequence[float]
    largest: Sequence[float]
    kl: Sequence[float]

    def part(self, positions: slice) -> "VectorErrors":
        """Return those of some positions."""
        return VectorErrors(self.rmse[positions], self.largest[positions], self.kl[positions])


def vector_errors(actual: Logits, expected: Logits) -> VectorErrors:
    """Return the errors of vectors [n, V] against float64.

    PyTorch computes them, with all cores and several numbers at a time. numpy took a fifth of an export's time.
    """
    rmse, largest, kl = list[float](), list[float](), list[float]()
    for part in _pieces(expected):
        exact = torch.from_numpy(expected[part]).double()
        vectors = torch.from_numpy(actual[part])
        difference = vectors.to(torch.float64, copy=True).sub_(exact)
        rmse += _root_mean_square(difference).tolist()
        largest += _largest(difference).tolist()
        probabilities = exact.softmax(-1)
        if max(largest[-len(exact) :]) < NEAR:
            mean = torch.linalg.vecdot(probabilities, difference)
            divergence = torch.linalg.vecdot(probabilities, difference.expm1_()).log1p() - mean
        else:
            ratio = exact.log_softmax(-1) - vectors.double().log_softmax(-1)
            divergence = torch.linalg.vecdot(probabilities, ratio)
        kl += divergence.clamp(min=0).tolist()  # rounding may make it negative
    return VectorErrors(rmse, largest, kl)


@dataclass
class Errors:
    """Errors at each position; the vectors themselves are not kept.

    least: a relative error; eager's counts as that much at least. least_worst: eager's at the worst position, likewise.
    """

    least: float
    least_worst: float = 0.0
    graph_rmse: list[float] = field(default_factory=list)
    eager_rmse: list[float] = field(default_factory=list)
    graph_largest: list[float] = field(default_factory=list)
    eager_largest: list[float] = field(default_factory=list)
    graph_kl: list[float] = field(default_factory=list)
    eager_kl: list[float] = field(default_factory=list)
    mean_square: list[float] = field(default_factory=list)
    largest_logit: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)

    def add(self, graph: Logits, eager: VectorErrors, expected: Logits) -> None:
        """Add positions: vectors [n, V] of the graph and in float64, and the errors of eager PyTorch there."""
        found = vector_errors(graph, expected)
        self.graph_rmse += found.rmse
        self.graph_largest += found.largest
        self.graph_kl += found.kl
        self.eager_rmse += eager.rmse
        self.eager_largest += eager.largest
        self.eager_kl += eager.kl
        for part in _pieces(expected):
            exact = torch.from_numpy(expected[part]).double()
            self.mean_square += _root_mean_square(exact).square().tolist()
            self.largest_logit += _largest(exact).tolist()
        self.margins += margins(graph, expected).tolist()

    @property
    def has_scale(self) -> bool:
        """Whether any expected number differs from 0, so that errors can be relative to the largest one."""
        return max(self.largest_logit) != 0

    def figures(self, worst: "Worst | None" = None) -> dict[str, tuple[float, float | None]]:
        """Return each figure as a pair: the graph's, and eager's own, or None for a ratio of both.

        worst: eager's largest errors at all positions, where these positions are only a few of them.
        """
        worst = worst or Worst()
        graph, eager = np.array(self.graph_rmse), np.array(self.eager_rmse)
        # Eager is exact at some positions by chance.
        size = np.sqrt(np.array(self.mean_square))
        floor, worst_floor = self.least * size, max(self.least, self.least_worst) * size.max()
        largest_logit = max(self.largest_logit)
        square = sum(self.mean_square)
        return {
            "median ratio": (float(np.median(graph / np.maximum(eager, floor))), None),
            "worst ratio": (float(graph.max() / max(eager.max(), worst_floor, worst.rmse)), None),
            "max error": (
                max(self.graph_largest) / largest_logit,
                max(*self.eager_largest, worst.error) / largest_logit,
            ),
            "nmse": (float(np.square(graph).sum() / square), float(np.square(eager).sum() / square)),
            "mean KL": (float(np.mean(self.graph_kl)), float(np.mean(self.eager_kl))),
            "max KL": (max(self.graph_kl), max(*self.eager_kl, worst.kl)),
        }

    def position_ratio(self) -> float:
        """Return the graph's largest error over eager's at the same position, or over its median where that is more."""
        graph, eager = np.array(self.graph_rmse), np.array(self.eager_rmse)
        floor = self.least * np.sqrt(np.array(self.mean_square))
        return float((graph / np.maximum(np.maximum(eager, np.median(eager)), floor)).max())

    def top1_agreement(self, allowed_error: float) -> float:
        """Return the fraction of positions whose top-1 token is float64's, or tied with it.

        Two tokens are tied where their logits differ by at most twice the allowed error. The actual error cannot decide
        that: whenever two tokens are exchanged, it is large enough to have exchanged them.
        """
        return float(np.mean(np.array(self.margins) <= 2 * allowed_error))


@dataclass(frozen=True)
class Worst:
    """The largest root mean square error and KL divergence of a position, and the largest error of an element."""

    rmse: float = 0.0
    kl: float = 0.0
    error: float = 0.0


def worst_of(errors: Iterable[VectorErrors]) -> Worst:
    """Return the largest errors of eager PyTorch, of all its vectors."""
    found = list(errors)
    return Worst(*(max(max(getattr(each, name)) for each in found) for name in ("rmse", "kl", "largest")))


def margins(graph: Logits, expected: Logits) -> NDArray[np.float64]:
    """Return the float64 logit of float64's top-1 token minus that of the graph's, at each position [n]."""
    chosen = graph.argmax(-1)
    return expected.max(-1) - expected[np.arange(len(expected)), chosen]


def largest_difference(left: Logits, right: Logits) -> float:
    """Return the largest absolute difference of two elements."""
    return max(float(np.abs(left[part] - right[part]).max()) for part in _pieces(right))


def _pieces(vectors: Logits) -> Iterator[slice]:
    """Yield slices of vectors [n, V] whose elements are few enough to be computed with at a time."""
    rows = max(1, PIECE // max(1, vectors.shape[-1]))
    yield from (slice(start, start + rows) for start in range(0, len(vectors), rows))


def _root_mean_square(vectors: Tensor) -> Tensor:
    """Return the root mean square of each vector, [n]."""
    return torch.linalg.vector_norm(vectors, dim=-1) / math.sqrt(vectors.shape[-1])


def _largest(vectors: Tensor) -> Tensor:
    """Return the largest magnitude in each vector, [n]."""
    return torch.maximum(-vectors.amin(-1), vectors.amax(-1))


def relative_rmse(actual: NDArray[np.floating], expected: NDArray[np.float64]) -> float:
    """Return the root mean square error, divided by the root mean square of `expected`.

    Where `expected` is all zeros, it is 0 for zeros, and infinite for anything else but NaN.
    """
    if not expected.any():
        error = float(np.square(actual).mean())
        return error if error == 0 or np.isnan(error) else float("inf")
    return float(np.sqrt(np.square(actual - expected).mean() / np.square(expected).mean()))
