"""The sentences about a report: of its certificate, its manifest and the model card."""

import math
import re
from typing import Any

from edgeformer.documents import schema
from edgeformer.export.parity.report import Check, Report, Rounding


def summary(report: Report) -> dict[str, Any]:
    """Return what the manifest keeps of a report, as plain data for strict JSON."""
    worst, greedy = worst_check(report), report.greedy
    return schema.to_json({
        "passed": report.passed,
        "mode": report.mode,
        "reference": report.reference,
        "comparison": report.comparison,
        "worst": {"name": worst.name, "value": worst.value, "limit": worst.limit},
        "greedy": {"steps": greedy.steps, "divergence": greedy.divergence, "excused": greedy.excused},
    })  # fmt: skip


def paragraph(report: Report) -> str:
    """Return two to five Markdown sentences for the README of a bundle."""
    worst, failures, twins = worst_check(report), len(report.failures()), report.unproved
    checks = f"{count(len(report.checks), 'check')} of the {_markdown(report.mode)} verification"
    certified = "Its parity is certified" if twins is None else "The parity of its float32 twins is certified"
    verdict = (
        f"{certified}: all {checks} passed"
        if report.passed
        else f"**It is not at parity:** {failures} of {checks} failed"
    )
    sentences = [
        f"{verdict}, against {_markdown(report.reference)}.",
        f"The figure {'closest to' if report.passed else 'furthest beyond'} its limit is “{_markdown(worst.name)}”: "
        f"{figures(worst)}.",
    ]
    if twins is not None:
        sentences.append(f"{_markdown(twins[1])}.")
    if report.comparison is not None:
        sentences.append(_markdown(report.comparison.describe()))
    for name, digest in report.pickled_weights.items():
        sentences.append(f"Weights were read from the pickle {_markdown(name)}, SHA-256 {digest}.")
    if report.greedy.steps:
        sentences.append(greedy_words(report))
    if report.quantization is not None:
        loss = report.quantization
        sentences.append(
            f"Quantization causes a mean KL divergence of {figure(loss.mean_kl)} nats from the original model, and "
            f"changes the top-1 token at {figure(100 - 100 * loss.top1_agreement)} % of positions (on {loss.texts})."
        )
    return " ".join(sentences)


def verdict(report: Report) -> str:
    """Say in a sentence or two whether the bundle may ship."""
    checks, failures = count(len(report.checks), "check"), report.failures()
    if report.passed:
        kept = "its only check" if len(report.checks) == 1 else f"all {checks}"
        return f"The exported model computes what the original computes, to within rounding: it passed {kept}."
    nothing = " Some of its figures are not numbers." if any(math.isnan(check.value) for check in failures) else ""
    if report.only_kernels_failed:
        return (
            "The exported model computes what the original computes, and kernels of edgeformer-kernels do not on the "
            f"machine that verified it: {len(failures)} of {checks} failed.{nothing} Run it without them there."
        )
    return (
        f"The exported model does not compute what the original computes: it failed {len(failures)} of {checks}."
        f"{nothing} Do not ship it."
    )


def worst_check(report: Report) -> Check:
    """Return the check nearest to its limit or furthest beyond it. Raises ValueError for a report without checks."""
    if not report.checks:
        raise ValueError("a report without checks certifies nothing")
    return report.closest()


def figure(value: float, *apart_from: float) -> str:
    """Format a value with three digits, or with as many as distinguish it from the values `apart_from`."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    digits = 3
    while digits < 17 and any(float(f"{value:.{digits}g}") == other != value for other in apart_from):
        digits += 1
    text = f"{value:.{digits - 1}e}" if 0 < abs(value) < 1e-3 else f"{value:#.{digits}g}"
    number, _, exponent = text.partition("e")
    return f"{number.removesuffix('.00')}e{int(exponent)}" if exponent else number.rstrip(".")


def figures(check: Check) -> str:
    """Describe a check's value and its limit."""
    least = "at least" if check.at_least else "at most"
    return f"{figure(check.value, check.limit, 1)}, where {least} {figure(check.limit, 1)} is allowed"


def count(number: int, noun: str) -> str:
    """Return a number with a noun, in its plural where that is due."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def greedy_words(report: Report) -> str:
    """Describe the free-running text in a sentence."""
    return f"{report.greedy.describe()}." if report.greedy.steps else "No free-running text was made."


def rounding_words(report: Report) -> str | None:
    """Describe the effect of storing the weights in the graph's precision; None where it was not measured."""
    if report.rounding is None:
        return None
    used = ""
    if report.quantization is not None:
        used = f" With everything that the graph rounds to 8 bits in use: {_loss_words(report.quantization)}."
    return (
        f"Storing the weights in {report.precision} changes the model itself, whatever runs it: "
        f"{_loss_words(report.rounding)}.{used} No limit is set, since this is the cost of the precision and not an "
        "error of the graph."
    )


def _loss_words(rounding: Rounding) -> str:
    return (
        f"KL divergence {figure(rounding.mean_kl)} nats in the mean and {figure(rounding.max_kl)} at most, the same "
        f"top-1 token at {figure(100 * rounding.top1_agreement, 100)} % of positions, normalised mean squared error "
        f"{figure(rounding.nmse)} on {rounding.texts}"
    )


def checks_finding(report: Report) -> str:
    """Say how the checks ended, and which was the closest to its limit."""
    worst, failures = worst_check(report), report.failures()
    if failures:
        finding = f"{len(failures)} of {count(len(report.checks), 'check')} failed; the worst is"
    else:
        finding = "Every check is within its limit; the closest is"
    return f"{finding} “{worst.name}”: {figures(worst)}"


def _markdown(text: str) -> str:
    """Escape text for Markdown, on one line."""
    return re.sub(r"([\\`*_<>&\[\]#|$])", r"\\\1", " ".join(text.split()))
