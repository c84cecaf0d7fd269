"""The figures of a parity certificate: matplotlib draws a `Report` as SVG for the page and as PNG for everything else.

Figures are placed at their log10 on a plain axis. Zero, NaN and infinity have no logarithm: they get ticks of their own
beside the powers of ten, so that none of them can vanish from a picture. Titles come from `certificate.py`, which knows
what a picture shows; colours are CSS variables in SVGs, and the page, `certificate.html.jinja`, defines them. pyplot is
not used: it keeps state for the whole process.
"""

import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from edgeformer.export.parity.report import Check, Curve, LayerError, Report, closest_to_limit

WIDE, NARROW = 7.2, 3.7  # inches: 691 px on a desktop page, 355 px on a phone
LEGEND = 0.25  # inches above the axes
PNG_DPI = 200
MOST_POINTS = 300  # of a line; more cannot be told apart at these widths

INK, MUTED, RULE, PAPER = "#1c2228", "#59636d", "#dfe3e7", "#ffffff"
GRAPH, EAGER, FAIL = "#1f5fa8", "#89929b", "#b3261e"
# Names of the CSS variables that stand for the colours above in the page.
CSS = {INK: "ink", MUTED: "muted", RULE: "rule", PAPER: "paper", GRAPH: "graph", EAGER: "eager", FAIL: "fail"}

STYLE: Any = {
    "axes.edgecolor": RULE, "axes.labelcolor": MUTED, "axes.titlecolor": INK, "axes.titlelocation": "left",
    "axes.titlesize": 9.5, "axes.labelsize": 9, "axes.axisbelow": True, "axes.grid": True, "axes.grid.axis": "y",
    "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False,
    "figure.labelsize": 9, "font.family": "DejaVu Sans", "font.size": 9, "grid.color": RULE, "grid.linewidth": 0.8,
    "legend.frameon": False, "legend.fontsize": 9, "legend.labelcolor": INK, "legend.borderpad": 0,
    "lines.solid_capstyle": "round", "text.color": INK, "text.parse_math": False,  # a name may hold dollar signs
    "xtick.color": RULE, "xtick.labelcolor": MUTED, "xtick.major.size": 3, "xtick.labelsize": 8.5,
    "ytick.labelcolor": MUTED, "ytick.major.size": 0, "ytick.labelsize": 8.5,
    "svg.fonttype": "none",  # text stays text: small, sharp, found by a search in the page
}  # fmt: skip
LINES: dict[str, dict[str, Any]] = {
    "graph": {"color": GRAPH, "linewidth": 1.25, "zorder": 3},
    "eager": {"color": EAGER, "linewidth": 0.9, "zorder": 2},
}
DOTS: dict[str, dict[str, Any]] = {
    "graph": {"color": GRAPH, "marker": "o", "linestyle": "", "markeredgewidth": 0, "zorder": 4},
    "eager": {"color": EAGER, "marker": "o", "linestyle": "", "markerfacecolor": PAPER, "zorder": 3},
    "fails": {"color": FAIL, "marker": "X", "linestyle": "", "markeredgewidth": 0, "zorder": 5, "clip_on": False},
}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture: a PNG file with its title, and `<svg>` elements without, for a page: wide, and narrow for phones."""

    png: bytes
    wide: str
    narrow: str


def run_of(check: Check) -> str:
    """The run in a check's name: `prefill` of `prefill: max error`; the whole name where that is all there is."""
    return check.name.partition(": ")[0]


def by_figure(checks: Iterable[Check]) -> dict[str, list[Check]]:
    """Checks of the same figure together: `max error` of `prefill: max error` and `decode: max error`."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.name.partition(": ")[2] or check.name, []).append(check)
    return groups


def draw_checks(report: Report, title: str) -> Picture:
    """Every check's figure and eager's own, as parts of the limit."""
    return _picture("checks", title, lambda width: _checks(by_figure(report.checks), width))


def draw_error_by_position(report: Report, title: str) -> Picture:
    """Root mean square error of the logits against float64, a panel for each run."""
    return _picture("positions", title, lambda width: _positions(report.curves, width))


def draw_error_by_layer(report: Report, title: str) -> Picture:
    """Error of the cached keys and of the cached values, relative to their size, layer by layer."""
    return _picture("layers", title, lambda width: _layers(report.layers, width))


def draw_kl_divergence(report: Report, title: str) -> Picture:
    """Histogram of the KL divergence over the positions of all runs."""
    values = np.array([value for curve in report.curves for value in curve.kl], dtype=np.float64)
    return _picture("kl", title, lambda width: _kl(values, width))


class _Powers:
    """An axis of powers of ten with room for zero at one end and for what is no number at the other."""

    def __init__(self, values: Iterable[float], *also: float):
        values = list(values)
        logs = [math.log10(value) for value in (*values, *also) if math.isfinite(value) and value > 0] or [0.0]
        pad = max(0.06 * (max(logs) - min(logs)), 0.3)
        self.low, self.high = min(logs) - pad, max(logs) + pad
        gap = 0.16 * (self.high - self.low)
        self.zero, self.broken = self.low - gap, self.high + gap
        self.has_zero = any(math.isfinite(value) and value <= 0 for value in values)
        self.has_broken = any(not math.isfinite(value) for value in values)
        self.limits = (
            self.zero - gap / 2 if self.has_zero else self.low,
            self.broken + gap / 2 if self.has_broken else self.high,
        )

    def place(self, values: Iterable[float]) -> NDArray[np.float64]:
        """Where figures stand on the axis."""
        return np.array([
            self.broken if not math.isfinite(value) else self.zero if value <= 0 else math.log10(value)
            for value in values
        ])  # fmt: skip

    def ticks(self) -> dict[float, str]:
        """Labels by place: powers of ten, or 1, 2 and 5 times them where there are few."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        inside = [power for power in powers if self.low <= power <= self.high]
        many = len(inside) > 2
        parts = [(1, power) for power in inside[:: math.ceil(len(inside) / 7)]] if many else []
        parts = parts or [(part, power) for power in powers for part in (1, 2, 5)]
        ticks = {power + math.log10(part): _power_text(part, power, plain=powers[0] >= -3) for part, power in parts}
        ticks = {place: text for place, text in ticks.items() if self.low <= place <= self.high}
        if self.has_zero:
            ticks[self.zero] = "0"
        if self.has_broken:
            ticks[self.broken] = "NaN, ∞"
        return ticks

    def set(self, axes: Axes, which: str) -> None:
        """Give an axis its range and labels, and part the ends that are off the scale."""
        axis, line = (axes.xaxis, axes.axvline) if which == "x" else (axes.yaxis, axes.axhline)
        ticks = self.ticks()
        axis.set_ticks(list(ticks), list(ticks.values()))
        axes.set(**{f"{which}lim": self.limits})
        for edge, there in ((self.low, self.has_zero), (self.high, self.has_broken)):
            if there:
                line(edge, color=EAGER, linewidth=0.8, linestyle=(0, (1, 2)))


def _checks(groups: dict[str, list[Check]], width: float) -> Figure:
    narrow = width < WIDE
    figure = _figure(width, 0.95 + len(groups) * (0.42 if narrow else 0.29))
    axes = figure.subplots()
    checks = [check for group in groups.values() for check in group]
    eager = [check.share(check.eager) for check in checks if check.eager is not None]
    scale = _Powers([*(check.share(check.value) for check in checks), *eager], 1.0)
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
        axes.text(x, y, _label(label, 52), transform=axes.get_yaxis_transform(), fontsize=8.5, va="center")
    scale.set(axes, "x")
    axes.set_ylim(len(groups) - 0.5, -0.75 if narrow else -0.5)
    axes.set_yticks(range(len(groups)), ["" if narrow else _label(name, 40) for name in groups])
    axes.tick_params("y", labelcolor=INK)
    axes.set_xlabel("figure / limit")
    notes = [(0.0, axes.get_xaxis_transform(), "limit", "center")]
    if not narrow and len(checks) > len(groups):
        notes.append((1.015, axes.transAxes, "furthest right", "left"))
    for x, transform, text, side in notes:
        axes.annotate(text, (x, 1), (0, 3), transform, textcoords="offset points", ha=side, fontsize=8.5, color=MUTED)
    kinds = {"graph": True, "eager": bool(eager), "fails": not all(check.passed for check in checks)}
    _legend(figure, [kind for kind, there in kinds.items() if there])
    return figure


def _positions(curves: Sequence[Curve], width: float) -> Figure:
    columns = _columns(len(curves), width)
    rows = max(math.ceil(len(curves) / columns), 1)
    figure = _figure(width, 0.7 + rows * (2.1 if rows == 1 else 1.55))
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    if not curves:
        return _nothing(figure, panels[0])
    scale = _Powers(value for curve in curves for line in (curve.graph, curve.eager) for value in line)
    step = max(1, *(math.ceil(len(curve.graph) / MOST_POINTS) for curve in curves))
    for panel, curve in zip(panels, curves, strict=False):
        panel.set_title(_label(curve.run, int(13 * width / columns)))
        for kind, line in (("eager", curve.eager), ("graph", curve.graph)):
            worst = [_worst(line[start : start + step]) for start in range(0, len(line), step)]
            _line(panel, curve.first_position + step * np.arange(len(worst)), worst, kind, scale)
        scale.set(panel, "y")
        panel.xaxis.set_major_locator(
            MaxNLocator(max(2, min(7, round(1.6 * width / columns))), integer=True, min_n_ticks=1)
        )
    for panel in panels[len(curves) :]:
        panel.set_visible(False)
    figure.supxlabel("position in the text" + (f" (each point: the worst of {step})" if step > 1 else ""), color=MUTED)
    figure.supylabel("RMS error of the logits", color=MUTED)
    _legend(figure, ["graph", "eager"], lines=True)
    return figure


def _layers(layers: Sequence[LayerError], width: float) -> Figure:
    narrow = width < WIDE
    figure = _figure(width, 4.2 if narrow else 2.6)
    panels = figure.subplots(*((2, 1) if narrow else (1, 2)), sharex=True, sharey=True)
    if not layers:
        panels[1].set_visible(False)
        return _nothing(figure, panels[0])
    lines = {
        "keys": ([layer.eager_key for layer in layers], [layer.graph_key for layer in layers]),
        "values": ([layer.eager_value for layer in layers], [layer.graph_value for layer in layers]),
    }
    scale = _Powers(value for pair in lines.values() for line in pair for value in line)
    x = np.array([layer.layer for layer in layers])
    for panel, (name, pair) in zip(panels, lines.items(), strict=True):
        panel.set_title(f"cached {name}")
        for kind, line in zip(("eager", "graph"), pair, strict=True):
            _line(panel, x, line, kind, scale, dots=4.0 if len(layers) <= 24 else 3.0)
        scale.set(panel, "y")
    panels[0].xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    panels[0].set_xlim(x.min() - 0.5, x.max() + 0.5)
    figure.supxlabel("layer", color=MUTED)
    figure.supylabel("relative RMS error", color=MUTED)
    _legend(figure, ["graph", "eager"])
    return figure


def _kl(values: NDArray[np.float64], width: float) -> Figure:
    figure = _figure(width, 2.5)
    axes = figure.subplots()
    if not len(values):
        return _nothing(figure, axes)
    scale = _Powers(values)
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    span = float(np.ptp(logs)) if len(logs) else 0.0
    size = next((size for size in (0.1, 0.2, 0.25, 0.5, 1.0) if span / size <= 24), span / 24)
    # Edges are whole multiples of the bin, so that powers of ten are edges.
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
        if 0 < count < 0.06 * counts.max():  # too low to be seen, and what one looks for
            _above(axes, left + size / 2, count)
    scale.set(axes, "x")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.margins(y=0.12)
    axes.set_xlabel("KL divergence from float64 (nats)")
    axes.set_ylabel("positions")
    return figure


def _above(axes: Axes, place: float, count: int) -> None:
    axes.annotate(f"{count:,}", (place, count), (0, 2), textcoords="offset points", ha="center", fontsize=8)


def _line(
    axes: Axes, x: NDArray[np.int64], values: Sequence[float], kind: str, scale: _Powers, dots: float | None = None
) -> None:
    """Draw a line of figures, broken where one is no number: there stands a mark at the end of the scale.

    dots: size of a dot at every figure; None puts them only where a figure has no neighbours to draw a line to.
    """
    y, off = scale.place(values), ~np.isfinite(np.array(values, dtype=np.float64))
    alone = ~off & np.insert(off, 0, True)[:-1] & np.append(off, True)[1:]
    axes.plot(x, np.where(off, np.nan, y), **LINES[kind])
    shown = alone if dots is None else ~off
    size = (dots or 4.0) + (2.0 if kind == "eager" else 0.0)  # a ring around the graph's dot where both agree
    axes.plot(x[shown], y[shown], **DOTS[kind], markersize=size)
    if off.any():  # unclipped marks of nothing would take room at the figure's corner
        axes.plot(x[off], y[off], **DOTS["fails" if kind == "graph" else kind], markersize=5)


def _worst(values: Sequence[float]) -> float:
    return max(values) if all(map(math.isfinite, values)) else math.nan


def _columns(panels: int, width: float) -> int:
    if width < WIDE:
        return min(panels, 2) or 1
    return {0: 1, 1: 1, 2: 2, 4: 2, 3: 3, 5: 3, 6: 3}.get(panels, 4)


def _power_text(part: int, power: int, plain: bool) -> str:
    if power in (0, 1) or (plain and power <= 3):
        return f"{part * 10**power:g}"
    exponent = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{'' if part == 1 else f'{part}×'}10{exponent}"


def _label(text: str, longest: int) -> str:
    """One line of printable text."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _nothing(figure: Figure, axes: Axes) -> Figure:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "nothing was measured", color=MUTED, ha="center", transform=axes.transAxes)
    return figure


def _legend(figure: Figure, kinds: Sequence[str], lines: bool = False) -> None:
    names = {"graph": "graph", "eager": "eager PyTorch", "fails": "graph, limit broken"}
    keys = [
        Line2D([], [], label=names[kind], **(LINES[kind] if lines else DOTS[kind] | {"markersize": 6}))
        for kind in kinds
    ]
    figure.legend(handles=keys, loc="upper left", ncols=len(kinds), handlelength=1.6 if lines else 0.8)
    _set_top(figure, 1.0)


def _set_top(figure: Figure, top: float) -> None:
    """Let the legend start at a part of the figure's height, and the axes below it."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, top))
    below = top - LEGEND / figure.get_figheight() if figure.legends else top
    engine.set(rect=(0, 0, 1, below), h_pad=0.07)


def _figure(width: float, height: float) -> Figure:
    figure = Figure((width, height), layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    return figure


def _picture(name: str, title: str, draw: Callable[[float], Figure]) -> Picture:
    """Draw at both widths. Names may come from anywhere: what is in no font of matplotlib's is drawn as a box."""
    with _style(f"{name} wide"):
        figure = draw(WIDE)
        wide, png = _svg(figure, title), _png(figure, title)
    with _style(f"{name} narrow"):
        return Picture(png=png, wide=wide, narrow=_svg(draw(NARROW), title))


@contextmanager
def _style(salt: str) -> Iterator[None]:
    """Set matplotlib's defaults and ours, whatever the user's are. salt: makes ids that are unique in the page."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE | {"svg.hashsalt": salt})
        yield


def _png(figure: Figure, title: str) -> bytes:
    lines = textwrap.wrap(_label(title, 240), 74)
    width, height = figure.get_size_inches()
    taller = height + 0.15 + 0.2 * len(lines)
    figure.set_size_inches(width, taller)
    _set_top(figure, height / taller)
    figure.text(0.01, 1 - 0.1 / taller, "\n".join(lines), va="top", fontsize=11, fontweight="bold", in_layout=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PNG_DPI, facecolor=PAPER, metadata={"Software": None})
    return buffer.getvalue()


def _svg(figure: Figure, title: str) -> str:
    """Render an `<svg>` for the inside of a page: no namespaces, no metadata, no ids but those it refers to itself."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    svg = re.sub(r"<svg [^>]*>", f'<svg {view[0]} role="img" aria-label="{html.escape(title)}">', svg, count=1)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg).replace("xlink:href", "href").replace("'DejaVu Sans'", "var(--font)")
    for colour, name in CSS.items():
        svg = svg.replace(f": {colour}", f": var(--{name})")
    return re.sub(r"\n\s*", "\n", svg)
