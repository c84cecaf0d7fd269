"""Compare figures of error with their limits: those of a graph, and of eager PyTorch in the same precision."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.export.parity.figures import (
    Errors,
    VectorErrors,
    Worst,
    largest_difference,
    margins,
    relative_rmse,
)
from edgeformer.export.parity.report import Check, Curve, Greedy, StateError
from edgeformer.export.parity.tolerances import LIMITS, RATIOS, UNIT_ROUNDOFF, norm_error, one_by_one, summed_rmse
from edgeformer.manifest.parts import Arithmetic

Array = NDArray[Any]
Caches = Sequence[tuple[Array, ...]]
"""Keys and values of each layer."""

ONLY_LOGITS = ("mean KL", "max KL")
"""Figures that are defined for logits only."""


@dataclass
class Piece:
    """Vectors at consecutive positions from `first` on, [n, V]: of the graph and in float64, with eager's errors."""

    graph: Array
    eager: VectorErrors
    expected: Array
    first: int = 0


@dataclass
class Judge:
    """Collects checks, and the largest errors that the certificate shows.

    eager_worst: eager PyTorch's largest errors in all runs, since the positions of a single run are a small sample.
    longest_sum: products that are added up in one sum of the model.
    by_position: check each position's error beside eager's there, too. Where an expert was chosen otherwise than in
        float64, the other figures would let any position err as much.
    """

    precision: Arithmetic
    checks: list[Check] = field(default_factory=list)
    states: list[StateError] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    eager_worst: Worst = field(default_factory=Worst)
    longest_sum: int = 0
    by_position: bool = False

    def logits(self, run: str, what: str, pieces: Iterable[Piece], *, behind: int | None = None) -> float:
        """Check every figure of one run over logits; return the absolute error that is allowed for a logit.

        behind: the first position of a run behind a synthetic past, whose limits use eager's errors in that run alone.
        """
        errors = self._errors(run, pieces)
        if behind is not None:
            self.curves[-1] = replace(self.curves[-1], first_position=behind)
        if not errors.has_scale:
            self._fail_zeros(run, what)
            return 0.0
        figures = errors.figures(self.eager_worst if behind is None else None)
        for figure, (value, eager) in figures.items():
            row = figure if behind is None or "ratio" not in figure else f"far {figure}"
            self.check(f"{run}: {figure}", what, row, value, eager)
        if self.by_position:
            self.check(f"{run}: position ratio", what, "position ratio", errors.position_ratio(), None)
        allowed = LIMITS["max error"].of(self.precision, figures["max error"][1]) * max(errors.largest_logit)
        reason = "the top-1 token must be float64's, or tied with it within twice the error that is allowed for a logit"
        self.checks.append(
            Check(
                name=f"{run}: top-1", what=what, value=errors.top1_agreement(allowed), limit=1.0, eager=None,
                reason=reason, at_least=True,
            )
        )  # fmt: skip
        return allowed

    def vectors(
        self,
        run: str,
        what: str,
        pieces: Iterable[Piece],
        *,
        few: bool = False,
        worst: Worst | None = None,
        longest_sum: int = 0,
        norm_size: int = 0,
    ) -> None:
        """Check the figures of one run over vectors that are not logits.

        few: whether a text has only one vector, so that the median is left to chance. worst: eager's largest errors of
        such vectors in all runs. longest_sum: products that are added up in one sum of the model (`SUM_ERRORS`).
        norm_size: numbers that the last norm reads of each position (`norm_error`).
        """
        left_out = (*ONLY_LOGITS, "median ratio") if few else ONLY_LOGITS
        errors = self._errors(run, pieces, longest_sum, norm_size)
        if not errors.has_scale:
            self._fail_zeros(run, what)
            return
        for figure, (value, eager) in errors.figures(worst).items():
            if figure not in left_out:
                self.check(f"{run}: {figure}", what, figure, value, eager, longest_sum)
        if self.by_position:
            self.check(f"{run}: position ratio", what, "position ratio", errors.position_ratio(), None)

    def _errors(self, run: str, pieces: Iterable[Piece], longest_sum: int = 0, norm_size: int = 0) -> Errors:
        """Return the errors of pieces; eager's count as what the limits on their ratios are a multiple of."""
        multiple = LIMITS["worst ratio"].of(self.precision, None)
        least = max(UNIT_ROUNDOFF[self.precision], summed_rmse(longest_sum) / multiple)
        errors = Errors(least, norm_error(norm_size) / multiple)
        for index, piece in enumerate(pieces):
            errors.add(piece.graph, piece.eager, piece.expected)
            if index == 0:
                self.curves.append(
                    Curve(
                        run=run, first_position=piece.first, graph=tuple(errors.graph_rmse),
                        eager=tuple(errors.eager_rmse), kl=tuple(errors.graph_kl),
                    )
                )  # fmt: skip
        return errors

    def _fail_zeros(self, name: str, what: str) -> None:
        """Add a failed check of vectors that are all 0 in float64, to which no error can be relative."""
        reason = "where PyTorch computes nothing but zeros, most faults have no effect: a verification proves nothing"
        self.checks.append(
            Check(
                name=f"{name}: zeros", what=f"{what}: all numbers are 0 in float64 PyTorch", value=float("nan"),
                limit=0.0, eager=None, reason=reason,
            )
        )  # fmt: skip

    def check(self, name: str, what: str, figure: str, value: float, eager: float | None, longest_sum: int = 0) -> None:
        """Compare one figure with its row of the table of limits. longest_sum: see `Limit.of`."""
        row = LIMITS[figure]
        limit = row.of(self.precision, eager, longest_sum)
        if figure in RATIOS and self.precision == "fp32":
            limit = max(limit, one_by_one(self.longest_sum))
        self.checks.append(Check(name=name, what=what, value=value, limit=limit, eager=eager, reason=row.reason))

    def caches(
        self, run: str, geometry: CacheGeometry, graph: Caches, eager: Caches, expected: Caches
    ) -> list[StateError]:
        """Check what the layers keep against float64, all of equal shapes; return the error of each tensor."""
        kept = [[tensor for layer in caches for tensor in layer] for caches in (graph, eager, expected)]
        errors = [
            StateError(
                layer=tensor.layer,
                tensor=tensor.name,
                graph=relative_rmse(ours, exact),
                eager=relative_rmse(theirs, exact),
            )
            for tensor, ours, theirs, exact in zip(geometry.tensors(), *kept, strict=True)
        ]
        per_token = {(tensor.layer, tensor.name): tensor.per_token for tensor in geometry.tensors()}
        for figure, kind in (("cache ratio", True), ("state ratio", False)):
            judged = [error for error in errors if per_token[error.layer, error.tensor] is kind]
            if judged:
                ratios = [error.graph / max(error.eager, UNIT_ROUNDOFF[self.precision]) for error in judged]
                what = f"{', '.join(dict.fromkeys(error.tensor for error in judged))}, at the worst layer"
                self.check(f"{run}: {figure}", what, figure, float(np.max(ratios)), None)  # NaN if any is
        return errors

    def agreement(self, name: str, pairs: Iterable[tuple[Array, Array]], eager: Array, expected: Array) -> None:
        """Check that two ways to compute the same vectors agree; eager's error against `expected` sets the limit."""
        scale = max(expected.max(), -expected.min())
        what = "largest difference of an element, relative to the largest element"
        if scale == 0:
            self._fail_zeros(name, what)
            return
        value = float(max(largest_difference(left, right) for left, right in pairs) / scale)
        self.check(name, what, "difference", value, float(largest_difference(eager, expected) / scale))

    def identical(self, name: str, what: str, once: Array, again: Array) -> None:
        """Check that two runs are equal bit for bit."""
        differing = float(np.count_nonzero(once.view(np.uint32) != again.view(np.uint32)))
        reason = "what a request does not contain must not change its answer"
        self.checks.append(
            Check(name=f"{name}: differing values", what=what, value=differing, limit=0.0, eager=None, reason=reason)
        )


def compare_greedy(logits: Array, expected: Array, allowed_error: float) -> Greedy:
    """Find the first token of a generated text that differs from float64's choice; the check of `top-1` judges it.

    logits: those that chose each new token, [n, V]; expected: those of float64 on the same tokens.
    """
    margin = margins(logits, expected)
    divergences = np.flatnonzero(margin > 0)
    if not len(divergences):
        return Greedy(steps=len(logits))
    step = int(divergences[0])
    return Greedy(
        steps=len(logits), divergence=step, token=int(logits[step].argmax()), expected=int(expected[step].argmax()),
        margin=float(margin[step]), allowed_error=allowed_error, excused=bool(margin[step] <= 2 * allowed_error),
    )  # fmt: skip
