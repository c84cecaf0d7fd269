"""What a verification found: plain data that prints as lines, saves as JSON, and draws as a certificate."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from edgeformer import schema

REPORT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Check:
    """One figure held against its limit. A figure that is NaN has not passed.

    name: what was run (`prefill`, `decode`…) and which figure (`prefill: worst ratio`). eager: the same figure for
    eager PyTorch in the graph's own precision, where there is one. reason: why the limit is what it is. at_least: the
    limit is a lower bound.
    """

    name: str
    what: str
    value: float
    limit: float
    eager: float | None
    reason: str
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """Whether the figure keeps its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def share(self, value: float) -> float:
        """What part of the limit a value takes: 0 nothing, 1 all of it, more than 1 too much; NaN for NaN.

        A lower bound under 1 is one on an agreement: the part is that of the disagreement which it allows.
        """
        limit = self.limit
        if math.isnan(value):
            return math.nan
        if self.at_least:
            value, limit = (1 - value, 1 - limit) if limit <= 1 else (limit, value)
        if value <= 0:
            return 0.0
        return value / limit if limit > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run, position by position: root mean square errors of the logits against float64, and KL divergence in
    nats."""

    run: str
    first_position: int
    graph: tuple[float, ...]
    eager: tuple[float, ...]
    kl: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LayerError:
    """Error of one layer's cached keys and values against float64: rmse / root mean square of the reference."""

    layer: int
    graph_key: float
    graph_value: float
    eager_key: float
    eager_value: float


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """A free-running greedy text of the graph, checked against float64 on the same tokens.

    divergence: the first step whose token is not the reference's favourite; None if there is none. margin: by how much
    the reference prefers its own. allowed_error: the error that a logit may have here; under twice that, it is a tie
    that rounding decides, and excused.
    """

    steps: int
    divergence: int | None = None
    token: int | None = None
    expected: int | None = None
    margin: float | None = None
    allowed_error: float | None = None
    excused: bool = True

    def describe(self) -> str:
        """One sentence for people."""
        if self.divergence is None:
            return f"{self.steps} free-running greedy tokens: all are those of float64"
        kind = "a tie that rounding decides" if self.excused else "and no tie"
        tie = f"{kind}: the margin is {self.margin:.2g}, an error of {self.allowed_error:.2g} is allowed"
        return (
            f"{self.steps} free-running greedy tokens: first other than float64's at step {self.divergence} "
            f"({self.token} instead of {self.expected}), {tie}"
        )


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """What storing the weights in the graph's precision changes, graph and errors of arithmetic apart: reported, no
    gate.

    Both sides are float64 PyTorch: the stored weights against the original ones.
    """

    mean_kl: float
    max_kl: float
    top1_agreement: float
    nmse: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that was found about one graph.

    mode: quick or full. reference: what it was compared with. hashes: SHA-256 of the graph's files, by name.
    environment: versions, providers, threads, TF32, machine. rounding: what storing the weights changes; quantization:
    what that changes with all that the graph rounds as it is used: activations, an int8 cache. orders: in how many
    orders of its sums eager PyTorch ran, to show how much rounding the model amplifies.
    """

    version: int
    mode: str
    reference: str
    precision: str
    environment: dict[str, str]
    hashes: dict[str, str]
    seconds: float
    checks: tuple[Check, ...]
    greedy: Greedy
    layers: tuple[LayerError, ...]
    curves: tuple[Curve, ...]
    rounding: Rounding | None
    quantization: Rounding | None = None
    orders: int = 1

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def failures(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    def closest(self) -> Check:
        """The check that is nearest to its limit, or furthest beyond it."""
        return closest_to_limit(self.checks)

    def describe(self) -> str:
        """A few lines for people: the verdict's grounds, or everything that failed."""
        if not self.passed:
            lines = [
                f"FAIL {check.name}: {check.value:.2g}, limit {check.limit:.2g} ({check.what})"
                for check in self.failures()
            ]
            shown = lines[:12] + ([f"… and {len(lines) - 12} more"] if len(lines) > 12 else [])
            return "\n".join(f"  {line}" for line in shown)
        closest = self.closest()
        lines = [
            f"  {len(self.checks)} checks passed; closest to its limit: {closest.name}, {closest.value:.2g} of "
            f"{closest.limit:.2g}"
        ]
        return "\n".join([*lines, *([f"  {self.greedy.describe()}"] if self.greedy.steps else [])])

    def to_json(self) -> dict[str, Any]:
        """Plain data: the verdict and every figure."""
        data = schema.fields_to_json(self) | {"passed": self.passed}
        for check, plain in zip(self.checks, data["checks"], strict=True):
            plain["passed"] = check.passed
        return data


def closest_to_limit(checks: Iterable[Check]) -> Check:
    """The check that is nearest to its limit, or furthest beyond it; one without a number is beyond all others."""

    def beyond(check: Check) -> float:
        share = check.share(check.value)
        return math.inf if math.isnan(share) else share

    return max(checks, key=beyond)
