"""Write the parity certificate of a bundle: a `Report` as JSON, and as a web page with a plot and tables.

`words.py` has the sentences, and `page.html.jinja` the layout. The page is self-contained: it loads nothing and runs no
script. Its one plot has a row for each figure, and a dot for each run of the graph:

    max error   ──○─●────────│──  prefill          ● graph   ○ eager PyTorch   │ limit

report.json has what the page leaves out: the errors at every position and in every layer.
"""

import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape

from edgeformer.errors import ExportError, shown
from edgeformer.export.parity.certificate import words
from edgeformer.export.parity.report import Check, Report, closest_to_limit

TEMPLATE = Path(__file__).with_name("page.html.jinja")
JSON_FILE, PAGE_FILE = "report.json", "report.html"

STATES = {
    "key": "cached keys", "value": "cached values", "conv": "inputs of convolutions", "recurrent": "recurrent states",
    "ssm": "state spaces",
}  # fmt: skip
"""Words for the tensors that layers keep, by the names in `edgeformer.contract.tensors`."""


def write_certificate(report: Report, folder: Path, title: str) -> None:
    """Write report.json and report.html into a folder, which is made if absent.

    title: the name of the bundle. Raises ValueError for a report without checks, and ExportError where it cannot write.
    """
    page = _page(report, title)
    text = json.dumps(report.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JSON_FILE).write_text(text + "\n", encoding="utf-8")
        (folder / PAGE_FILE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ExportError(f"the certificate cannot be written to {shown(str(folder))}: {error.strerror}.") from error


def _page(report: Report, title: str) -> str:
    axis, groups = Axis(shares(report.checks)), by_figure(report.checks)
    return _template().render(
        report=report, title=title, words=words, tiles=list(_tiles(report)), groups=groups,
        axis=axis, rows=[plot_row(name, checks, axis) for name, checks in groups.items()],
        errors=list(largest_errors(report)),
    )  # fmt: skip


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"figure": words.figure, "unbroken": _unbroken}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def by_figure(checks: Iterable[Check]) -> dict[str, list[Check]]:
    """Group checks by the figure in their names: `max error` for `prefill: max error` and `decode: max error`."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.name.partition(": ")[2] or check.name, []).append(check)
    return groups


def shares(checks: Iterable[Check]) -> Iterator[float]:
    """Yield the ratios to their limits of all figures, the graph's and eager PyTorch's."""
    for check in checks:
        yield from (check.share(value) for value in (check.value, check.eager) if value is not None)


class Axis:
    """A logarithmic axis of ratios to a limit, whose places are percent of its width.

    0 has a place before all others, and NaN and infinity have one behind them, so that no value is left out.
    """

    ZERO, LOW, HIGH, BROKEN = 3.0, 9.0, 91.0, 97.0

    def __init__(self, ratios: Iterable[float]):
        ratios = list(ratios)
        logs = [math.log10(ratio) for ratio in (*ratios, 0.5, 2.0) if 0 < ratio < math.inf]
        self._low, self._high = min(logs), max(logs)
        powers = range(math.ceil(self._low), math.floor(self._high) + 1)
        step = math.ceil(len(powers) / 7)
        self.ticks = {self.place(10.0**power): _power(power) for power in powers if power % step == 0 and power}
        self.ticks |= {self.ZERO: "0"} if any(ratio <= 0 for ratio in ratios) else {}
        self.ticks |= {self.BROKEN: "NaN, ∞"} if not all(map(math.isfinite, ratios)) else {}
        self.limit = self.place(1.0)

    def place(self, ratio: float) -> float:
        """Return the place of a ratio."""
        if not math.isfinite(ratio):
            return self.BROKEN
        if ratio <= 0:
            return self.ZERO
        part = (math.log10(ratio) - self._low) / (self._high - self._low)
        return round(self.LOW + part * (self.HIGH - self.LOW), 1)


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -4 < power < 5 else f"1e{power}"


class PlotRow(NamedTuple):
    """A row of the plot: the figure, the run furthest to the right where runs differ, and the dots by their kind."""

    figure: str
    run: str
    dots: list[tuple[str, float]]


def plot_row(figure: str, checks: Sequence[Check], axis: Axis) -> PlotRow:
    """Return the row of the checks of a figure; dots of the graph are drawn over those of eager PyTorch."""
    dots = [("eager", axis.place(check.share(check.eager))) for check in checks if check.eager is not None]
    dots += [("graph" if check.passed else "fails", axis.place(check.share(check.value))) for check in checks]
    differ = len({check.share(check.value) for check in checks}) > 1
    return PlotRow(figure, closest_to_limit(checks).name.partition(": ")[0] if differ else "", dots)


class LargestError(NamedTuple):
    """The largest error of a run, or of a tensor that layers keep, with eager PyTorch's largest one.

    where: the position or the layer of the graph's. kl: the largest KL divergence of the run.
    """

    what: str
    where: str
    graph: float
    eager: float
    kl: float | None = None


def largest_errors(report: Report) -> Iterator[LargestError]:
    """Yield the largest errors of all runs that have positions, and of all kinds of tensors that layers keep."""
    for curve in report.curves:
        if curve.graph:
            place = _place_of_largest(curve.graph)
            first, last = curve.first_position, curve.first_position + len(curve.graph) - 1
            where = f"position {first + place:,} of {first:,}–{last:,}"
            yield LargestError(curve.run, where, curve.graph[place], _largest(curve.eager), _largest(curve.kl))
    for kind in dict.fromkeys(error.tensor for error in report.states):
        errors = [error for error in report.states if error.tensor == kind]
        worst = errors[_place_of_largest([error.graph for error in errors])]
        where = f"layer {worst.layer} of {errors[0].layer}–{errors[-1].layer}"
        yield LargestError(STATES.get(kind, kind), where, worst.graph, _largest([error.eager for error in errors]))


def _place_of_largest(values: Sequence[float]) -> int:
    """Return the index of the largest value; NaN is larger than all others."""
    return max(range(len(values)), key=lambda index: math.inf if math.isnan(values[index]) else values[index])


def _largest(values: Sequence[float]) -> float:
    return values[_place_of_largest(values)]


def _tiles(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield the key figures at the top of the page, as (name, figure, note)."""
    worst, greedy, figure = words.worst_check(report), report.greedy, words.figure
    passed = len(report.checks) - len(report.failures())
    yield "Checks passed", f"{passed} of {len(report.checks)}", f"{report.mode} verification, {report.precision}"
    yield (
        "Closest to its limit" if report.passed else "Furthest beyond its limit",
        figure(worst.value, worst.limit, 1),
        f"{worst.name}, {'at least' if worst.at_least else 'at most'} {figure(worst.limit, 1)}",
    )
    if divergences := [value for curve in report.curves for value in curve.kl]:
        yield (
            "Largest KL divergence",
            figure(_largest(divergences)),
            f"nats, over {words.count(len(divergences), 'position')}",
        )
    if greedy.steps:
        same = greedy.steps if greedy.divergence is None else greedy.divergence
        how = "as in float64" if greedy.divergence is None else "as in float64, then a tie"
        how = how if greedy.excused else "as in float64, then different ones"
        yield "Free-running tokens", f"{same} of {greedy.steps}", how


def _unbroken(text: str) -> Markup:
    """Escape text, and prevent line breaks inside numbers such as 1e-7."""
    return Markup(re.sub(r"[\d.]+e-\d+", r'<span class="number">\g<0></span>', str(escape(text))))
