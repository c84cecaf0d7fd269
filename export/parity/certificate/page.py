"""Write the parity certificate of a bundle: a `Report` as JSON, as pictures, and as a web page.

This file writes all sentences about a report; `plots.py` only draws, and `page.html.jinja` only lays out the page. The
page is self-contained: it loads nothing and runs no script.
"""

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from edgeformer.documents import schema
from edgeformer.errors import ExportError, shown
from edgeformer.export.parity.certificate import plots
from edgeformer.export.parity.certificate.drawing import Picture
from edgeformer.export.parity.report import Check, Report, Rounding

TEMPLATE = Path(__file__).with_name("page.html.jinja")
JSON_FILE, PAGE_FILE = "report.json", "report.html"

READING = {
    "checks": "Each row is a figure and each dot one run of the graph, placed at the ratio of its value to its limit; "
    "a run to the right of the line fails. Rings are eager PyTorch's own values with the same limits. For figures with "
    "a lower limit, the disagreement is drawn.",
    "error_by_position": "RMS error of the logits against float64 at each position, with one panel for each way "
    "to feed the graph. Two implementations that differ only by rounding stay together; where the blue line leaves the "
    "grey one, the graph starts to compute something else.",
    "error_by_layer": "RMS error of each layer's cache, relative to its size. Errors accumulate from layer to layer; a "
    "step that eager PyTorch does not have shows in which layer a fault is.",
    "kl_divergence": "KL divergence of the graph's next-token distribution from float64's, at the positions "
    "shown above; 0 means that both are equal. Smaller is better; a second peak on the right would be positions where "
    "the graph computes something else.",
}
"""Captions of the pictures."""


@dataclass(frozen=True)
class Section:
    """One picture of the page. name: the stem of its PNG file. title: what the picture shows."""

    name: str
    title: str
    draw: Callable[[Report, str], Picture]


def write_certificate(report: Report, folder: Path, title: str) -> None:
    """Write report.json, report.html and the page's pictures as PNG files into a folder, which is made if absent.

    title: the name of the bundle. Raises ValueError for a report without checks, and ExportError where it cannot write.
    """
    pictures = {section: section.draw(report, section.title) for section in sections(report)}
    page = _page(report, title, pictures)
    text = json.dumps(report.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section, picture in pictures.items():
            (folder / f"{section.name}.png").write_bytes(picture.png)
        (folder / JSON_FILE).write_text(text + "\n", encoding="utf-8")
        (folder / PAGE_FILE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ExportError(f"the certificate cannot be written to {shown(str(folder))}: {error.strerror}.") from error


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
    worst, failures, twins = worst_check(report), len(report.failures()), report.environment.get("cuda")
    checks = f"{_count(len(report.checks), 'check')} of the {_markdown(report.mode)} verification"
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
        sentences.append(f"{_markdown(twins)}.")
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
            f"changes the top-1 token at {figure(100 - 100 * loss.top1_agreement)} % of positions (on random tokens)."
        )
    return " ".join(sentences)


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
        f"{figure(rounding.nmse)}"
    )


def verdict(report: Report) -> str:
    """Say in a sentence or two whether the bundle may ship."""
    checks, failures = _count(len(report.checks), "check"), report.failures()
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


def sections(report: Report) -> tuple[Section, ...]:
    """Return the pictures in the order of the page."""
    positions = [
        (f"{curve.run}, position {curve.first_position + index}", graph, eager)
        for curve in report.curves
        for index, (graph, eager) in enumerate(zip(curve.graph, curve.eager, strict=True))
    ]
    states = [(f"{error.tensor} of layer {error.layer}", error.graph, error.eager) for error in report.states]
    divergences = [value for curve in report.curves for value in curve.kl]
    everywhere = "in everything that the layers keep"
    return (
        Section("checks", _checks_finding(report), plots.draw_checks),
        Section("error_by_position", _errors_finding(positions, "at every position"), plots.draw_error_by_position),
        Section("error_by_layer", _errors_finding(states, everywhere), plots.draw_error_by_layer),
        Section("kl_divergence", _kl_finding(divergences), plots.draw_kl_divergence),
    )


def _checks_finding(report: Report) -> str:
    worst, failures = worst_check(report), report.failures()
    if failures:
        finding = f"{len(failures)} of {_count(len(report.checks), 'check')} failed; the worst is"
    else:
        finding = "Every check is within its limit; the closest is"
    return f"{finding} “{worst.name}”: {figures(worst)}"


def _errors_finding(places: Sequence[tuple[str, float, float]], everywhere: str) -> str:
    """Compare the graph's errors with eager's in a sentence; places: (where, the graph's error, eager's error)."""
    broken = [where for where, graph, _ in places if not math.isfinite(graph)]
    if broken:
        return f"The graph gives NaN or infinity in {len(broken):,} of {len(places):,} places; the first: {broken[0]}"
    ratios = [
        (graph / eager if eager else math.inf if graph else 1.0, where)
        for where, graph, eager in places
        if math.isfinite(eager)
    ]
    if not ratios:
        return "There is nothing to compare with eager PyTorch"
    if len(ratios) < len(places):
        everywhere = "wherever eager PyTorch gives numbers"
    (least, _), (worst, where) = min(ratios), max(ratios)
    if least >= 0.5 and worst <= 2:
        factor = math.ceil(100 * max(worst, 1 / least)) / 100
        return f"Errors of the graph and of eager PyTorch agree within a factor of {factor:g} {everywhere}"
    if worst <= 1:
        return f"The graph's error is at most eager PyTorch's {everywhere}"
    if worst == math.inf:
        return f"The graph has an error where eager PyTorch is exact: {where}"
    middle = figure(statistics.median(ratio for ratio, _ in ratios))
    return f"The graph's error is {middle} times eager PyTorch's at the median, {figure(worst)} times at {where}"


def _kl_finding(values: Iterable[float]) -> str:
    values = list(values)
    numbers = [value for value in values if math.isfinite(value)]
    if not values:
        return "No KL divergence was measured"
    if not numbers:
        return "The KL divergence is not a number at any position"
    half, most = figure(statistics.median(numbers)), figure(max(numbers))
    finding = f"KL divergence is {half} nats at the median of {len(numbers):,} positions and {most} at the worst"
    if len(numbers) == 1:
        finding = f"KL divergence is {most} nats at the only position"
    return finding + (f"; {len(values) - len(numbers):,} more gave no number" if len(numbers) < len(values) else "")


def _page(report: Report, title: str, pictures: dict[Section, Picture]) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"figure": figure, "unbroken": _unbroken}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        report=report,
        title=title,
        verdict=verdict(report),
        tiles=_tiles(report),
        greedy=greedy_words(report),
        rounding=rounding_words(report),
        sections=[(section, Markup(picture.wide), Markup(picture.narrow)) for section, picture in pictures.items()],
        groups=plots.by_figure(report.checks),
        figures=figures,
        READING=READING,
    )


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """Return the key figures at the top of the page, as (name, figure, note)."""
    worst, greedy = worst_check(report), report.greedy
    passed = len(report.checks) - len(report.failures())
    tiles = [
        ("Checks passed", f"{passed} of {len(report.checks)}", f"{report.mode} verification, {report.precision}"),
        (
            "Closest to its limit" if report.passed else "Furthest beyond its limit",
            figure(worst.value, worst.limit, 1),
            f"{worst.name}, {'at least' if worst.at_least else 'at most'} {figure(worst.limit, 1)}",
        ),
    ]
    divergences = [value for curve in report.curves for value in curve.kl]
    if divergences:
        most = max(divergences) if all(map(math.isfinite, divergences)) else math.nan
        tiles.append(("Largest KL divergence", figure(most), f"nats, over {_count(len(divergences), 'position')}"))
    if greedy.steps:
        same = greedy.steps if greedy.divergence is None else greedy.divergence
        how = "as in float64" if greedy.divergence is None else "as in float64, then a tie"
        how = how if greedy.excused else "as in float64, then different ones"
        tiles.append(("Free-running tokens", f"{same} of {greedy.steps}", how))
    return tiles


def _unbroken(text: str) -> Markup:
    """Escape text, and prevent line breaks inside numbers such as 1e-7."""
    return Markup(re.sub(r"[\d.]+e-\d+", r'<span class="number">\g<0></span>', str(escape(text))))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _markdown(text: str) -> str:
    """Escape text for Markdown, on one line."""
    return re.sub(r"([\\`*_<>&\[\]#|$])", r"\\\1", " ".join(text.split()))
