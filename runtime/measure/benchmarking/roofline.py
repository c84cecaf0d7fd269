"""Draw a roofline: the operations per second of each workload, below the limits of memory and of arithmetic.

The x axis is arithmetic intensity, in operations per byte that must be read. Left of the ridge, where the slope meets a
flat roof, memory bandwidth is the limit, right of it arithmetic. Needs matplotlib, unlike the rest of the runtime.
Source: Williams, Waterman, Patterson, "Roofline" (CACM 52, 2009).
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from edgeformer.errors import RequestError
from edgeformer.runtime.measure.benchmarking.result import BenchmarkResult, Phase, Roofs, Workload

INK, MUTED, RULE, PAPER = "#1c2228", "#59636d", "#dfe3e7", "#ffffff"
KINDS: dict[str, dict[str, Any]] = {
    "prefill": {"label": "prefill", "marker": "s", "color": "#b3541e"},
    "decode": {"label": "decode", "marker": "o", "color": "#1f5fa8"},
}
DPI = 160
LINE, LETTER_WIDTH, GAP = 10.5, 4.8, 9.0
"""Layout of labels in points (1/72 inch): line spacing, width of a letter, distance to the marker."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A phase of a workload. intensity: operations per byte. rate: operations per second."""

    kind: str
    label: str
    intensity: float
    rate: float


def draw_roofline(result: BenchmarkResult) -> bytes:
    """Return a PNG file. Raises RequestError where the peak rates or the costs of a token are not known."""
    roofs, points = result.roofs, list(_points(result))
    if roofs is None or not points:
        raise RequestError(f"a roofline cannot be drawn: {'; '.join(result.notes)}. Leave out the plot.")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9, "text.parse_math": False})
        figure = Figure((7.2, 4.6), layout="constrained", facecolor=PAPER)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        _draw_axes(axes, roofs, points)
        _draw_roofs(axes, roofs)
        _draw_points(figure, axes, points)
        name = result.name if len(result.name) <= 48 else f"{result.name[:47]}…"
        threads = f"{result.threads} thread{'s' * (result.threads != 1)}"
        axes.set_title(f"{name}, {result.precision}, {threads}", loc="left", fontsize=11, fontweight="bold", color=INK)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _points(result: BenchmarkResult) -> Iterator[Point]:
    for workload in result.workloads:
        for kind, phase in (("prefill", workload.prefill), ("decode", workload.decode)):
            if phase is not None and phase.flops_per_token is not None and phase.bytes_per_token:
                yield Point(
                    kind=kind,
                    label=_label(workload, phase),
                    intensity=phase.flops_per_token / phase.bytes_per_token,
                    rate=phase.flops_per_token * phase.tokens_per_second.median,
                )


def _label(workload: Workload, phase: Phase) -> str:
    return f"{workload.batch_size} × {workload.tokens}: {phase.tokens_per_second.median:,.0f}"


def _draw_axes(axes: Axes, roofs: Roofs, points: Sequence[Point]) -> None:
    ridge = roofs.int8.median / roofs.bandwidth.median
    low = min(0.25, *(point.intensity for point in points)) / 1.5
    high = max(4 * ridge, *(6 * point.intensity for point in points))
    lowest = min(roofs.bandwidth.median * low, *(point.rate for point in points)) / 1e9
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(lowest / 2, 4 * roofs.int8.median / 1e9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, place: f"{value:,g}")
    axes.set_xlabel("operations per byte read", color=MUTED)
    axes.set_ylabel("GFLOP/s (int8: GOP/s)", color=MUTED)
    axes.grid(True, color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", color=RULE, labelcolor=MUTED)
    for spine in axes.spines.values():
        spine.set_color(RULE)


def _draw_roofs(axes: Axes, roofs: Roofs) -> None:
    bandwidth = roofs.bandwidth.median
    low, high = axes.get_xlim()
    for name, unit, spread, style in (("int8", "GOP/s", roofs.int8, "--"), ("fp32", "GFLOP/s", roofs.fp32, "-")):
        ridge = spread.median / bandwidth
        flat = spread.median / 1e9
        x, y = [low, ridge, high], [low * bandwidth / 1e9, flat, flat]
        axes.plot(x, y, style, color=INK, linewidth=1.3, zorder=2)
        text = f"{name} products {flat:,.0f} {unit}"
        axes.annotate(text, (high, flat), (-4, 4), textcoords="offset points", ha="right", color=INK)
    middle = np.sqrt(low * roofs.fp32.median / bandwidth)
    axes.annotate(
        f"memory {bandwidth / 1e9:,.0f} GB/s", (middle, middle * bandwidth / 1e9), (-5, 5), textcoords="offset points",
        ha="right", color=INK,
    )  # fmt: skip


def _draw_points(figure: Figure, axes: Axes, points: Sequence[Point]) -> None:
    for kind in [kind for kind in KINDS if any(point.kind == kind for point in points)]:
        own = [point for point in points if point.kind == kind]
        x, y = [point.intensity for point in own], [point.rate / 1e9 for point in own]
        axes.plot(x, y, linestyle="", markersize=6, zorder=4, **KINDS[kind])
    axes.legend(
        loc="upper left", frameon=False, labelcolor=INK, fontsize=9, title="batch × tokens: tokens/s", alignment="left"
    )  # fmt: skip
    figure.canvas.draw()  # computes the layout
    for point, side, below in _spaced(figure, axes, points):
        colour = KINDS[point.kind]["color"]
        axes.annotate(
            point.label, (point.intensity, point.rate / 1e9), (side * GAP, -below), textcoords="offset points",
            ha="left" if side > 0 else "right", va="center", fontsize=8, color=colour, zorder=5,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (side < 0, 0.5), "shrinkA": 0,
            },
        )  # fmt: skip


def _spaced(figure: Figure, axes: Axes, points: Sequence[Point]) -> Iterator[tuple[Point, int, float]]:
    """Yield each point, the side of its label (1: right, -1: left), and how far below it to avoid other labels."""
    at = {point: axes.transData.transform((point.intensity, point.rate / 1e9)) * 72 / figure.dpi for point in points}
    taken = [(x - GAP / 2, x + GAP / 2, y) for x, y in at.values()]  # (left, right, height)
    for point, (x, y) in sorted(at.items(), key=lambda item: -item[1][1]):
        width = LETTER_WIDTH * len(point.label)
        crowded = any(GAP < other - x < width + 2 * GAP and abs(height - y) < LINE for other, height in at.values())
        side = -1 if crowded and point.kind == "prefill" else 1  # the slope is left of decode points
        left, right = sorted((x + side * GAP, x + side * (GAP + width)))
        beside = [height for start, end, height in taken if start < right and end > left]
        place = y
        while hit := [height for height in beside if abs(height - place) < LINE]:
            place = min(hit) - LINE
        taken.append((left, right, place))
        yield point, side, y - place
