"""The pictures of a parity certificate, drawn from a `Report`: checks, errors by position and by layer, KL divergences.

`page.py` gives their titles, which depend on what they show; `drawing.py` has the axes, lines and file formats.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from edgeformer.export.parity.certificate.drawing import (
    DOTS,
    FAIL,
    GRAPH,
    INK,
    MUTED,
    PAPER,
    WIDE,
    LogAxis,
    Picture,
    add_legend,
    draw_line,
    draw_nothing,
    new_figure,
    one_line,
    render,
)  # fmt: skip
from edgeformer.export.parity.report import Check, Curve, Report, StateError, closest_to_limit

PLURALS = {
    "key": "keys", "value": "values", "conv": "inputs of convolutions", "recurrent": "recurrent states",
    "ssm": "state spaces",
}  # fmt: skip
"""Titles of the tensors that layers keep, by the names in `edgeformer.contract.tensors`."""
MOST_POINTS = 300
"""Points of a line: the page cannot show more of them apart."""


def run_of(check: Check) -> str:
    """Return the run in a check's name (`prefill` of `prefill: max error`), or the whole name if it has no figure."""
    return check.name.partition(": ")[0]


def by_figure(checks: Iterable[Check]) -> dict[str, list[Check]]:
    """Group checks by the figure in their names: `max error` for `prefill: max error` and `decode: max error`."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.name.partition(": ")[2] or check.name, []).append(check)
    return groups


def draw_checks(report: Report, title: str) -> Picture:
    """Draw the ratio of every check's figure, and of eager's own, to the limit."""
    return render("checks", title, lambda width: _checks(by_figure(report.checks), width))


def draw_error_by_position(report: Report, title: str) -> Picture:
    """Draw the RMS error of the logits against float64, with a panel for each run."""
    return render("positions", title, lambda width: _positions(report.curves, width))


def draw_error_by_layer(report: Report, title: str) -> Picture:
    """Draw the relative RMS error of each layer's cached keys and values."""
    return render("layers", title, lambda width: _states(report.states, width))


def draw_kl_divergence(report: Report, title: str) -> Picture:
    """Draw a histogram of the KL divergence at the positions of all runs."""
    values = np.array([value for curve in report.curves for value in curve.kl], dtype=np.float64)
    return render("kl", title, lambda width: _kl(values, width))


def _checks(groups: dict[str, list[Check]], width: float) -> Figure:
    narrow = width < WIDE
    figure = new_figure(width, 0.95 + len(groups) * (0.42 if narrow else 0.29))
    axes = figure.subplots()
    checks = [check for group in groups.values() for check in group]
    eager = [check.share(check.eager) for check in checks if check.eager is not None]
    scale = LogAxis([*(check.share(check.value) for check in checks), *eager], 1.0)
    axes.axvline(0, color=INK, linewidth=1.2)
    axes.axvspan(0, scale.limits[1], color=FAIL, alpha=0.06, linewidth=0)
    for row, (name, group) in enumerate(groups.items()):
        for check in group:
            if check.eager is not None:
                axes.plot(scale.place([check.share(check.eager)]), [row], **DOTS["eager"], markersize=7)
        for check in group:
            place = scale.place([check.share(check.value)])
            axes.plot(place, [row], **DOTS["graph" if check.passed else "fails"], markersize=5.5)
        shares = {check.share(check.value) for check in group}
        run = run_of(closest_to_limit(group)) if len(shares) > 1 else ""
        x, y, label = (0.0, row - 0.33, f"{name} · {run}" if run else name) if narrow else (1.015, row, run)
        axes.text(x, y, one_line(label, 52), transform=axes.get_yaxis_transform(), fontsize=8.5, va="center")
    scale.set(axes, "x")
    axes.set_ylim(len(groups) - 0.5, -0.75 if narrow else -0.5)
    axes.set_yticks(range(len(groups)), ["" if narrow else one_line(name, 40) for name in groups])
    axes.tick_params("y", labelcolor=INK)
    axes.set_xlabel("ratio of the figure to its limit")
    notes = [(0.0, axes.get_xaxis_transform(), "limit", "center")]
    if not narrow and len(checks) > len(groups):
        notes.append((1.015, axes.transAxes, "furthest right", "left"))
    for x, transform, text, side in notes:
        axes.annotate(text, (x, 1), (0, 3), transform, textcoords="offset points", ha=side, fontsize=8.5, color=MUTED)
    kinds = {"graph": True, "eager": bool(eager), "fails": not all(check.passed for check in checks)}
    add_legend(figure, [kind for kind, there in kinds.items() if there])
    return figure


def _positions(curves: Sequence[Curve], width: float) -> Figure:
    columns = _columns(len(curves), width)
    rows = max(math.ceil(len(curves) / columns), 1)
    figure = new_figure(width, 0.7 + rows * (2.1 if rows == 1 else 1.55))
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    if not curves:
        return draw_nothing(figure, panels[0])
    scale = LogAxis(value for curve in curves for line in (curve.graph, curve.eager) for value in line)
    step = max(1, *(math.ceil(len(curve.graph) / MOST_POINTS) for curve in curves))
    for panel, curve in zip(panels, curves, strict=False):
        panel.set_title(one_line(curve.run, int(13 * width / columns)))
        for kind, line in (("eager", curve.eager), ("graph", curve.graph)):
            worst = [_worst(line[start : start + step]) for start in range(0, len(line), step)]
            draw_line(panel, curve.first_position + step * np.arange(len(worst)), worst, kind, scale)
        scale.set(panel, "y")
        panel.xaxis.set_major_locator(
            MaxNLocator(max(2, min(7, round(1.6 * width / columns))), integer=True, min_n_ticks=1)
        )
    for panel in panels[len(curves) :]:
        panel.set_visible(False)
    figure.supxlabel(
        "position in the text" + (f" (each point is the worst of {step})" if step > 1 else ""), color=MUTED
    )
    figure.supylabel("RMS error of the logits", color=MUTED)
    add_legend(figure, ["graph", "eager"], lines=True)
    return figure


def _states(errors: Sequence[StateError], width: float) -> Figure:
    """Draw one panel for each kind of tensor: keys, values, states of convolutions and of recurrent layers."""
    kinds = list(dict.fromkeys(error.tensor for error in errors)) or [""]
    columns = 1 if width < WIDE else 2
    rows = -(-len(kinds) // columns)
    figure = new_figure(width, 2.6 if rows == 1 else 2.1 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for panel in grid[len(kinds) :]:
        panel.set_visible(False)
    if not errors:
        return draw_nothing(figure, grid[0])
    scale = LogAxis(value for error in errors for value in (error.eager, error.graph))
    last = max(error.layer for error in errors)
    for panel, kind in zip(grid, kinds, strict=False):
        shown = [error for error in errors if error.tensor == kind]
        panel.set_title(f"cached {PLURALS.get(kind, kind)}")
        x, dots = np.array([error.layer for error in shown]), 4.0 if len(shown) <= 24 else 3.0
        draw_line(panel, x, [error.eager for error in shown], "eager", scale, dots=dots)
        draw_line(panel, x, [error.graph for error in shown], "graph", scale, dots=dots)
        scale.set(panel, "y")
    grid[0].xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    grid[0].set_xlim(-0.5, last + 0.5)
    figure.supxlabel("layer", color=MUTED)
    figure.supylabel("relative RMS error", color=MUTED)
    add_legend(figure, ["graph", "eager"])
    return figure


def _kl(values: NDArray[np.float64], width: float) -> Figure:
    figure = new_figure(width, 2.5)
    axes = figure.subplots()
    if not len(values):
        return draw_nothing(figure, axes)
    scale = LogAxis(values)
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    span = float(np.ptp(logs)) if len(logs) else 0.0
    size = next((size for size in (0.1, 0.2, 0.25, 0.5, 1.0) if span / size <= 24), span / 24)
    # Edges are whole multiples of the bin width, so that powers of ten are edges.
    first, last = (math.floor(logs.min() / size), math.floor(logs.max() / size) + 1) if len(logs) else (0, 1)
    counts, edges = np.histogram(logs, bins=size * np.arange(first, last + 1))
    axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=GRAPH, edgecolor=PAPER, linewidth=0.8)
    scale.low, scale.high = min(scale.low, edges[0]), max(scale.high, edges[-1])
    for place, which, colour in (
        (scale.zero, np.isfinite(values) & (values <= 0), GRAPH),
        (scale.broken, ~np.isfinite(values), FAIL),
    ):
        if which.any():
            axes.bar(place, which.sum(), 0.5 * (scale.low - scale.zero), color=colour)
            _above(axes, place, which.sum())
    for left, count in zip(edges, counts, strict=False):
        if 0 < count < 0.06 * counts.max():  # outliers, whose bars are too low to be seen
            _above(axes, left + size / 2, count)
    scale.set(axes, "x")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.margins(y=0.12)
    axes.set_xlabel("KL divergence from float64 (nats)")
    axes.set_ylabel("positions")
    return figure


def _above(axes: Axes, place: float, count: int) -> None:
    axes.annotate(f"{count:,}", (place, count), (0, 2), textcoords="offset points", ha="center", fontsize=8)


def _worst(values: Sequence[float]) -> float:
    return max(values) if all(map(math.isfinite, values)) else math.nan


def _columns(panels: int, width: float) -> int:
    if width < WIDE:
        return min(panels, 2) or 1
    return {0: 1, 1: 1, 2: 2, 4: 2, 3: 3, 5: 3, 6: 3}.get(panels, 4)
