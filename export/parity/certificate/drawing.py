"""Draw the parts of a certificate's pictures: a logarithmic axis, lines and legends; write SVG and PNG files.

Values are drawn at their log10 on a linear axis. Zero, NaN and infinity have no logarithm; they get ticks of their own
beside the powers of ten, so that no value can be missing from a picture. Colours are CSS variables in SVGs, which
`page.html.jinja` defines. pyplot is not used, since it keeps state for the whole process.
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
from numpy.typing import NDArray

WIDE, NARROW = 7.2, 3.7
"""Widths of a figure in inches: 691 px for the page on a desktop, 355 px for a phone."""
LEGEND = 0.25
"""Height of the legend above the axes, in inches."""
PNG_DPI = 200

INK, MUTED, RULE, PAPER = "#1c2228", "#59636d", "#dfe3e7", "#ffffff"
GRAPH, EAGER, FAIL = "#1f5fa8", "#89929b", "#b3261e"
CSS = {INK: "ink", MUTED: "muted", RULE: "rule", PAPER: "paper", GRAPH: "graph", EAGER: "eager", FAIL: "fail"}
"""Names of the CSS variables of the page that replace the colours above."""

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
    """One picture: a PNG file with its title, and two `<svg>` elements without it, for a desktop and for a phone."""

    png: bytes
    wide: str
    narrow: str


class LogAxis:
    """A logarithmic axis with room for zero at one end, and for NaN and infinity at the other."""

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
        """Return the places of values on the axis."""
        return np.array([
            self.broken if not math.isfinite(value) else self.zero if value <= 0 else math.log10(value)
            for value in values
        ])  # fmt: skip

    def ticks(self) -> dict[float, str]:
        """Return labels by place: powers of ten, or 1, 2 and 5 times them where there are few powers."""
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
        """Set the range and labels of an axis (`x` or `y`), with lines that separate zero and NaN from the scale."""
        axis, line = (axes.xaxis, axes.axvline) if which == "x" else (axes.yaxis, axes.axhline)
        ticks = self.ticks()
        axis.set_ticks(list(ticks), list(ticks.values()))
        axes.set(**{f"{which}lim": self.limits})
        for edge, there in ((self.low, self.has_zero), (self.high, self.has_broken)):
            if there:
                line(edge, color=EAGER, linewidth=0.8, linestyle=(0, (1, 2)))


def draw_line(
    axes: Axes, x: NDArray[np.int64], values: Sequence[float], kind: str, scale: LogAxis, dots: float | None = None
) -> None:
    """Draw a line of values, interrupted at NaN and infinity, which are drawn as marks at the end of the scale.

    dots: size of a dot at every value; None draws dots only for values without a neighbour to draw a line to.
    """
    y, off = scale.place(values), ~np.isfinite(np.array(values, dtype=np.float64))
    alone = ~off & np.insert(off, 0, True)[:-1] & np.append(off, True)[1:]
    axes.plot(x, np.where(off, np.nan, y), **LINES[kind])
    shown = alone if dots is None else ~off
    size = (dots or 4.0) + (2.0 if kind == "eager" else 0.0)  # a ring stays visible around the graph's dot
    axes.plot(x[shown], y[shown], **DOTS[kind], markersize=size)
    if off.any():  # an empty unclipped plot would take room at the figure's corner
        axes.plot(x[off], y[off], **DOTS["fails" if kind == "graph" else kind], markersize=5)


def _power_text(part: int, power: int, plain: bool) -> str:
    if power in (0, 1) or (plain and power <= 3):
        return f"{part * 10**power:g}"
    exponent = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{'' if part == 1 else f'{part}×'}10{exponent}"


def one_line(text: str, longest: int) -> str:
    """Return a text as one printable line of at most `longest` characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def draw_nothing(figure: Figure, axes: Axes) -> Figure:
    """Fill a figure that has no values with a note."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, "nothing was measured", color=MUTED, ha="center", transform=axes.transAxes)
    return figure


def add_legend(figure: Figure, kinds: Sequence[str], lines: bool = False) -> None:
    """Add a legend for kinds of marks (keys of `DOTS`) above the axes."""
    names = {"graph": "graph", "eager": "eager PyTorch", "fails": "graph, beyond the limit"}
    keys = [
        Line2D([], [], label=names[kind], **(LINES[kind] if lines else DOTS[kind] | {"markersize": 6}))
        for kind in kinds
    ]
    figure.legend(handles=keys, loc="upper left", ncols=len(kinds), handlelength=1.6 if lines else 0.8)
    _set_top(figure, 1.0)


def _set_top(figure: Figure, top: float) -> None:
    """Place the legend at a fraction of the figure's height, and the axes below it."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, top))
    below = top - LEGEND / figure.get_figheight() if figure.legends else top
    engine.set(rect=(0, 0, 1, below), h_pad=0.07)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; sizes in inches."""
    figure = Figure((width, height), layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    return figure


def render(name: str, title: str, draw: Callable[[float], Figure]) -> Picture:
    """Draw a picture at both widths. Characters that matplotlib's fonts lack are drawn as boxes."""
    with _style(f"{name} wide"):
        figure = draw(WIDE)
        wide, png = _svg(figure, title), _png(figure, title)
    with _style(f"{name} narrow"):
        return Picture(png=png, wide=wide, narrow=_svg(draw(NARROW), title))


@contextmanager
def _style(salt: str) -> Iterator[None]:
    """Use matplotlib's defaults and our style instead of the user's. salt: makes the ids of SVGs unique in the page."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE | {"svg.hashsalt": salt})
        yield


def _png(figure: Figure, title: str) -> bytes:
    lines = textwrap.wrap(one_line(title, 240), 74)
    width, height = figure.get_size_inches()
    taller = height + 0.15 + 0.2 * len(lines)
    figure.set_size_inches(width, taller)
    _set_top(figure, height / taller)
    figure.text(0.01, 1 - 0.1 / taller, "\n".join(lines), va="top", fontsize=11, fontweight="bold", in_layout=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PNG_DPI, facecolor=PAPER, metadata={"Software": None})
    return buffer.getvalue()


def _svg(figure: Figure, title: str) -> str:
    """Return an `<svg>` element for a page, without namespaces, metadata, or ids that it does not refer to."""
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
