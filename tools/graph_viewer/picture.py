"""Draw a picture of a block: boxes for nodes, pills for inputs and outputs, and lines between them.

The background is white, so that the picture looks the same on any page. Lengths are in inches, and y grows downwards.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path as Curve
from matplotlib.textpath import text_to_path

from graph_viewer.block import Block, Part
from graph_viewer.layout import Box, Layout, Link, Segment, place
from graph_viewer.shapes import Dims

INK, MUTED, RULE, PAPER, LINE = "#1c2228", "#59636d", "#dfe3e7", "#ffffff", "#8b959e"

ONNX, PILL, OTHER = ("#e8f0fa", "#1f5fa8"), ("#f4f5f7", "#89929b"), ("#f3eafa", "#7a4ba0")
COLOURS = {"": ONNX, "com.microsoft": ("#fdf0e1", "#b86e14"), "edgeformer": ("#e6f4ec", "#2c7a4b")}
"""Fill and edge colours of boxes by the domain of the op; other domains share OTHER."""

HEADING, TITLE, SMALL = 11.0, 8.5, 6.5
"""Font sizes in points."""
LEADING = 1.4
"""Line spacing as a multiple of the font size."""

PAD, GAP, MARGIN = 0.09, 0.18, 0.3
LABEL = 0.17
"""Inches below every row where lines are vertical, with shapes beside them."""
BEND, STEEPNESS, TALLEST_BEND = 0.16, 0.07, 0.7
"""Height in inches where lines cross to the next row: at least BEND, and more the further they go sideways."""
ARROW = 0.055

LONGEST = 46
"""Largest number of characters of a name or a list of constants; longer ones are cut in the middle."""

DPI = 150
LARGEST = 65_000 / DPI
"""Largest side of a PNG, in inches."""

SYMBOLS = {
    "batch_size": "B", "sequence_length": "S", "total_sequence_length": "T", "past_sequence_length": "P",
    "source_length": "L",
}  # fmt: skip
"""Symbols of dimensions in shapes; the picture explains them at its foot."""


class TooLargeError(ValueError):
    """The picture is too large for the file format."""


@dataclass(frozen=True)
class Text:
    """A line of text."""

    text: str
    size: float
    colour: str
    bold: bool = False

    @property
    def width(self) -> float:
        """Return the width of the text."""
        return _width(self.text, self.size, self.bold)

    @property
    def height(self) -> float:
        """Return the height including the space to the next line."""
        return self.size * LEADING / 72


def draw(block: Block, title: str, path: Path) -> None:
    """Write a PNG or SVG file, by the suffix of the path. Raises TooLargeError."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        matplotlib.rcdefaults()
        # Names may contain dollar signs, which are not formulas; text drawn as paths looks the same everywhere.
        matplotlib.rcParams.update({"text.parse_math": False, "svg.fonttype": "path", "svg.hashsalt": title})
        figure = _Card(block, title).figure()
        figure.savefig(path, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)


class _Card:
    """Everything in the picture, with its position."""

    def __init__(self, block: Block, title: str):
        self.block = block
        self.heading = Text(title, HEADING, INK, bold=True)
        self.texts = [_texts(part) for part in block.parts]
        self.boxes = [_box(part, texts) for part, texts in zip(block.parts, self.texts, strict=True)]
        self.layout = place(self.boxes, (Link(*line) for line in block.lines), GAP)
        self.tops, self.bottoms = _rows(self.layout, self.boxes)
        self.foot = [Text(line, SMALL, MUTED) for line in _symbols(block)]
        self.domains = dict.fromkeys(part.domain for part in block.parts if part.domain is not None)

    def figure(self) -> Figure:
        """Draw everything. Raises TooLargeError."""
        domains_width = sum(_width(_domain(domain), SMALL) + 0.4 for domain in self.domains)
        foot = max((text.width for text in self.foot), default=0.0)
        inside = max(self.layout.width, self.heading.width, domains_width, foot)
        head = self.heading.height + 0.3
        end = self.bottoms[-1] + 0.15
        width = inside + 2 * MARGIN
        height = head + end + sum(text.height for text in self.foot) + 2 * MARGIN
        if max(width, height) > LARGEST:
            raise TooLargeError(f"a picture of {self.block.nodes} nodes is larger than a file can be.")
        figure = Figure((width, height), facecolor=PAPER)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        left = (self.layout.width - inside) / 2
        axes.set_xlim(left - MARGIN, left + inside + MARGIN)
        axes.set_ylim(height - head - MARGIN, -head - MARGIN)
        _write(axes, left, self.heading.height / 2 - head, self.heading, "left")
        self._draw_domains(axes, left, self.heading.height + 0.08 - head)
        self._draw_lines(axes)
        for number in range(len(self.boxes)):
            self._draw_box(axes, number)
        for text in self.foot:
            _write(axes, left, end + text.height / 2, text, "left")
            end += text.height
        return figure

    def _draw_domains(self, axes: Axes, x: float, y: float) -> None:
        """Draw the legend of colours."""
        for domain in self.domains:
            fill, edge = COLOURS.get(domain, OTHER)
            axes.add_patch(_rounded(x, y - 0.055, 0.16, 0.11, 0.02, fill, edge))
            text = Text(_domain(domain), SMALL, MUTED)
            _write(axes, x + 0.22, y, text, "left")
            x += text.width + 0.4

    def _draw_lines(self, axes: Axes) -> None:
        for row, x in self.layout.passing:
            _stroke(axes, [(x, self.tops[row]), (x, self.bottoms[row] + LABEL)])
        for segment in self.layout.segments:
            self._draw_segment(axes, segment)

    def _draw_segment(self, axes: Axes, segment: Segment) -> None:
        """Draw a line: down beside the labels, over to the next row's top, and down to the box there."""
        bottom = self.bottoms[segment.row]
        start, entry = bottom + LABEL, self.tops[segment.row + 1]
        if segment.tail is not None:
            _stroke(axes, [(segment.start, bottom), (segment.start, start)])
        middle = (start + entry) / 2
        ways = [(segment.start, start), (segment.start, middle), (segment.end, middle), (segment.end, entry)]
        _stroke(axes, ways, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        if segment.head is not None:
            top = self._top(segment.head)
            _stroke(axes, [(segment.end, entry), (segment.end, top - ARROW / 2)])
            corners = [
                (segment.end, top),
                (segment.end - ARROW / 2, top - ARROW),
                (segment.end + ARROW / 2, top - ARROW),
            ]
            axes.add_patch(Polygon(corners, facecolor=LINE, linewidth=0))

    def _top(self, number: int) -> float:
        """Return the top of a box; boxes stand on the bottom of their row."""
        return self.bottoms[self.layout.rows[number]] - self.boxes[number].height

    def _draw_box(self, axes: Axes, number: int) -> None:
        part, box, x = self.block.parts[number], self.boxes[number], self.layout.x[number]
        fill, edge = PILL if part.domain is None else COLOURS.get(part.domain, OTHER)
        radius = 0.05 if part.domain is not None else box.height / 2
        top = self._top(number)
        axes.add_patch(_rounded(x - box.width / 2, top, box.width, box.height, radius, fill, edge))
        y = top + PAD / 2
        for text in self.texts[number]:
            _write(axes, x, y + text.height / 2, text, "center")
            y += text.height
        for port, (_, dims) in zip(box.ports, part.outputs, strict=False):
            if dims is not None:
                label = Text(_shape(dims), SMALL, MUTED)
                _write(axes, x + port + 0.05, top + box.height + LABEL / 2 + 0.01, label, "left")


def _texts(part: Part) -> list[Text]:
    """Return the lines of text in a box, from top to bottom."""
    if part.domain is None:
        return [Text(_short(part.title), SMALL, INK, bold=True), Text(_short(part.name), SMALL, MUTED)]
    constants = [_short(", ".join(part.constants))] if part.constants else []
    return [
        Text(part.title, TITLE, INK, bold=True),
        *([Text(_short(part.name), SMALL, MUTED)] if part.name else []),
        *(Text(line, SMALL, INK) for line in (*part.weights, *constants)),
    ]


def _box(part: Part, texts: Sequence[Text]) -> Box:
    """Return the size of a box: large enough for its texts, and for the shapes below it, right of its lines."""
    text_width = max(text.width for text in texts) + 2 * PAD
    height = sum(text.height for text in texts) + PAD
    if part.domain is None:
        text_width += height / 2
    labels = [_width(_shape(dims), SMALL) + 0.14 if dims is not None else 0.14 for _, dims in part.outputs]
    if len(labels) < 2:
        return Box(width=max(text_width, 2 * labels[0] if labels else 0.0), height=height, ports=(0.0,))
    width = max(text_width, sum(labels))
    spare = (width - sum(labels)) / len(labels)
    ports, at = [], -width / 2 + spare / 2
    for label in labels:
        ports.append(at + 0.04)
        at += label + spare
    return Box(width=width, height=height, ports=tuple(ports))


def _rows(layout: Layout, boxes: Sequence[Box]) -> tuple[list[float], list[float]]:
    """Return top and bottom of every row: as high as its highest box, with space for crossing lines."""
    count = max(layout.rows) + 1
    heights = [max(box.height for box, at in zip(boxes, layout.rows, strict=True) if at == row) for row in range(count)]
    tops, bottoms = [], []
    y = 0.0
    for row, height in enumerate(heights):
        tops.append(y)
        bottoms.append(y + height)
        aside = max((abs(way.end - way.start) for way in layout.segments if way.row == row), default=0.0)
        y += height + LABEL + min(BEND + STEEPNESS * aside, TALLEST_BEND)
    return tops, bottoms


def _symbols(block: Block) -> list[str]:
    """Return what the symbols in shapes stand for."""
    used = {dim for part in block.parts for _, dims in part.outputs for dim in dims or ()}
    meanings = [f"{symbol} {name}" for name, symbol in SYMBOLS.items() if name in used]
    return [" · ".join(meanings)] if meanings else []


def _shape(dims: Dims) -> str:
    return f"[{', '.join(SYMBOLS.get(str(dim), str(dim)) for dim in dims)}]" if dims else "scalar"


def _domain(domain: str) -> str:
    return domain or "ONNX"


def _short(text: str) -> str:
    half = (LONGEST - 1) // 2
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[-half:]}"


@cache
def _width(text: str, size: float, bold: bool = False) -> float:
    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width / 72


def _write(axes: Axes, x: float, y: float, text: Text, align: Literal["left", "center"]) -> None:
    weight = "bold" if text.bold else "normal"
    axes.text(
        x, y, text.text, fontsize=text.size, color=text.colour, fontweight=weight, ha=align, va="center_baseline",
        zorder=4,
    )  # fmt: skip


def _rounded(x: float, y: float, width: float, height: float, radius: float, fill: str, edge: str) -> FancyBboxPatch:
    style = f"round,pad=0,rounding_size={radius}"
    return FancyBboxPatch(
        (x, y), width, height, boxstyle=style, facecolor=fill, edgecolor=edge, linewidth=0.8, zorder=3
    )


def _stroke(axes: Axes, points: Sequence[tuple[float, float]], codes: Sequence[Any] | None = None) -> None:
    axes.add_patch(
        PathPatch(
            Curve(points, codes),
            facecolor="none",
            edgecolor=LINE,
            linewidth=0.8,
            capstyle="round",
            snap=False,
            zorder=1,
        )
    )
