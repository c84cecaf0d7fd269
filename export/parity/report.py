"""The result of a verification: plain data that is printed, saved as JSON, and shown by a certificate."""

import math
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from edgeformer import __version__
from edgeformer.documents import schema
from edgeformer.export.importers.opened_model import Comparison
from edgeformer.manifest.providers import PROVIDERS, Provider
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import onnxruntime, usable_cores

REPORT_VERSION = 2

KERNELS = "kernels "
"""How the names of checks begin that judge kernels of edgeformer-kernels, in place of the graph's own functions."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One figure and its limit; a figure that is NaN fails.

    Attributes:
        name: the run and the figure (`prefill: worst ratio`).
        what: a description of the run.
        eager: the same figure for eager PyTorch in the graph's own precision, if it has one.
        reason: why the limit has its value.
        at_least: the limit is a lower bound.
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
        """Whether the figure is within its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def share(self, value: float) -> float:
        """Return the ratio of a value to the limit: over 1 is beyond the limit; NaN for NaN.

        For a lower bound of at most 1, which is one on an agreement, both are replaced by the disagreement, 1 − value.
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
    """Errors of one run at each position: RMS error of the logits against float64, and KL divergence in nats."""

    run: str
    first_position: int
    graph: tuple[float, ...]
    eager: tuple[float, ...]
    kl: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class StateError:
    """Error of one tensor that a layer keeps: RMS error over the root mean square of the float64 reference.

    tensor: its name in the layer, such as `key`.
    """

    layer: int
    tensor: str
    graph: float
    eager: float


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """A text that the graph generated greedily, compared with float64 on the same tokens.

    divergence: the first step whose token is not the reference's top-1 token, or None; `token` is the graph's and
    `expected` the reference's. margin: the difference of their float64 logits. allowed_error: the error allowed for a
    logit; a margin of at most twice that is a tie that rounding decides, and excused.
    """

    steps: int
    divergence: int | None = None
    token: int | None = None
    expected: int | None = None
    margin: float | None = None
    allowed_error: float | None = None
    excused: bool = True

    def describe(self) -> str:
        """Describe the text in a sentence."""
        if self.divergence is None:
            return f"{self.steps} free-running greedy tokens: all are those of float64"
        kind = "a tie that rounding decides" if self.excused else "which is not a tie"
        tie = f"{kind}: the margin is {self.margin:.2g}, an error of {self.allowed_error:.2g} is allowed"
        return (
            f"{self.steps} free-running greedy tokens: the first that is not float64's is at step {self.divergence} "
            f"({self.token} instead of {self.expected}), {tie}"
        )


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """How much storing the weights in the graph's precision changes the model; reported, without a limit.

    Both sides run in float64 PyTorch, with the stored and with the original weights: KL divergences in nats, fraction
    of positions with the same top-1 token, and normalised mean squared error of the logits. texts: what both read.
    """

    mean_kl: float
    max_kl: float
    top1_agreement: float
    nmse: float
    texts: str = "random tokens"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a verification of the graphs of one bundle; its fields are those of report.json.

    Attributes:
        mode: quick or full.
        reference: what the graphs were compared with.
        hashes: SHA-256 of the graphs' files, by name.
        environment: versions, provider, threads, TF32, machine.
        rounding: the effect of storing the weights.
        quantization: that effect together with all rounding of the graph in use, of activations and of a quantized
            cache.
        orders: the number of summation orders in which eager PyTorch ran; more than 1 where a borderline failure was
            checked again.
        comparison: of eager PyTorch with the module of transformers, at export; None where there was none to compare.
        pickled_weights: SHA-256 of each pickle that the weights were read from, by name.
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
    states: tuple[StateError, ...]
    curves: tuple[Curve, ...]
    rounding: Rounding | None
    quantization: Rounding | None = None
    orders: int = 1
    comparison: Comparison | None = None
    pickled_weights: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def failures(self) -> list[Check]:
        """Return the checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    @property
    def only_kernels_failed(self) -> bool:
        """Whether the graph is right by itself, and kernels of edgeformer-kernels are wrong on this machine."""
        failures = self.failures()
        return bool(failures) and all(check.name.startswith(KERNELS) for check in failures)

    def kernel_checks(self) -> dict[str, list[Check]]:
        """Return the checks that judge kernels of edgeformer-kernels, by SIMD level."""
        levels: dict[str, list[Check]] = {}
        for check in self.checks:
            if check.name.startswith(KERNELS):
                levels.setdefault(check.name.removeprefix(KERNELS).partition(", ")[0], []).append(check)
        return levels

    def closest(self) -> Check:
        """Return the check that is nearest to its limit, or furthest beyond it."""
        return closest_to_limit(self.checks)

    def describe(self) -> str:
        """Describe the result in a few lines: the check closest to its limit and the greedy text, or all failures."""
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
        if self.greedy.steps:
            lines.append(f"  {self.greedy.describe()}")
        if self.kernel_checks():
            lines.append(f"  kernels: {self.environment['kernels']}")
        if self.unproved is not None:
            lines.append(f"  {self.unproved[0]}: {self.unproved[1]}")
        return "\n".join(lines)

    @property
    def unproved(self) -> tuple[str, str] | None:
        """Return the title of the provider whose kernels did not run, and a sentence about it; None where they ran."""
        found = (
            (each.title, self.environment[each.name]) for each in PROVIDERS.values() if each.name in self.environment
        )
        return next(found, None)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data, with `passed` for the report and for every check."""
        data = schema.fields_to_json(self) | {"passed": self.passed}
        for check, plain in zip(self.checks, data["checks"], strict=True):
            plain["passed"] = check.passed
        return data


def closest_to_limit(checks: Iterable[Check]) -> Check:
    """Return the check that is nearest to its limit, or furthest beyond it; NaN is beyond all others."""

    def beyond(check: Check) -> float:
        share = check.share(check.value)
        return math.inf if math.isnan(share) else share

    return max(checks, key=beyond)


def environment_of(provider: Provider) -> dict[str, str]:
    """Return what a verification runs with: versions, provider, machine."""
    return {
        "edgeformer": __version__,
        "onnxruntime": onnxruntime().__version__,
        "provider": provider.name,
        **sessions_of(provider).environment(onnxruntime()),
        "TF32": "off",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {sys.platform}",
        "threads": str(usable_cores()),
    }
