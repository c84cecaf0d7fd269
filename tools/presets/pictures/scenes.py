"""Pictures of shapes and digits: what is where, drawn by Pillow, and drawn fast for training.

A scene has things in the cells of a grid. `draw` makes the picture that a person sees, `Painter` what the processor
makes of it, from parts that are resized once.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from presets.corpora.problem import is_held_out

SIDE, GRID = 256, 4
"""Pixels of a side of a picture, and cells of a side."""

SEEN, TILE, PATCH = 128, 64, 16
"""Pixels of a side after the processor's resize, of a tile that it cuts, and of a patch of a tile."""

SCALE = SIDE // SEEN

TILE_CELLS = GRID * TILE // SEEN
"""Cells of a side of a tile."""

SHAPES = ["circle", "square", "triangle", "star", "cross"]
DIGITS = [str(digit) for digit in range(10)]
KINDS = SHAPES + DIGITS

COLOURS = {
    "red": [(255, 0, 0), (215, 45, 45)],
    "green": [(0, 128, 0), (45, 170, 75)],
    "blue": [(0, 0, 255), (45, 85, 215)],
    "yellow": [(255, 255, 0), (245, 205, 45)],
    "purple": [(128, 0, 128), (155, 65, 190)],
    "black": [(0, 0, 0), (40, 40, 40)],
}
"""Colours of things, each around a named colour of Pillow or a softer one."""

SIZES = range(34, 47, 3)
SHIFT = 6
"""Largest distance of a thing from the middle of its cell."""

COUNTS = {1: 1, 2: 2, 3: 3, 4: 3, 5: 3, 6: 3, 7: 2}
"""Numbers of things in a picture, and the weight with which each is drawn."""

LINED_UP = 0.6
"""Fraction of pictures whose things are in two rows or in two columns, so that more of them are beside each other."""

MARGIN = 2
"""Pixels of a part around its thing, after the resize, with those that a whole pixel of shift needs."""

WIDTH = 28
"""Pixels of a side of a part, after the resize."""

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Thing:
    """A shape or a digit. cell: row by row from the top left. x, y: its upper left corner, in pixels."""

    kind: str
    colour: str
    cell: int
    size: int
    x: int
    y: int
    fill: Colour

    @property
    def row(self) -> int:
        """Return its row of cells."""
        return self.cell // GRID

    @property
    def column(self) -> int:
        """Return its column of cells."""
        return self.cell % GRID

    @property
    def name(self) -> str:
        """Return its colour and its kind."""
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Scene:
    """The things in a picture, in the order of cells, and the colour behind them."""

    things: tuple[Thing, ...]
    ground: Colour

    @property
    def held_out(self) -> bool:
        """Return whether it is never trained on: two things beside each other, or the only one, decide about it."""
        pairs = [
            f"{thing.name} {direction} {other.name}"
            for thing in self.things
            for direction in ("right of", "below")
            if (other := self.beside(thing, direction)) is not None
        ]
        alone = [" ".join(f"{thing.name} {thing.cell}" for thing in self.things)]
        return any(is_held_out(f"picture: {key}") for key in pairs or alone)

    def beside(self, thing: Thing, direction: str) -> Thing | None:
        """Return the nearest thing in the same row (`left of`, `right of`) or column (`above`, `below`)."""
        across = direction in ("left of", "right of")
        sign = 1 if direction in ("right of", "below") else -1
        found: list[tuple[int, Thing]] = []
        for other in self.things:
            same = other.row == thing.row if across else other.column == thing.column
            distance = sign * (other.column - thing.column if across else other.row - thing.row)
            if same and distance > 0:
                found.append((distance, other))
        return min(found, key=lambda each: each[0])[1] if found else None


def place(kind: str, colour: str, cell: int, size: int, fill: Colour, shift: tuple[int, int] = (0, 0)) -> Thing:
    """Return a thing, so many pixels from the middle of a cell."""
    row, column = divmod(cell, GRID)
    x, y = (
        round((index + 0.5) * SIDE / GRID - size / 2) + moved for index, moved in zip((column, row), shift, strict=True)
    )
    return Thing(kind, colour, cell, size, x, y, fill)


def scene(random: Random, count: int | None = None) -> Scene:
    """Return a scene of so many things, or of one to seven; some have few kinds or few colours, to be counted."""
    count = count or random.choices(list(COUNTS), list(COUNTS.values()))[0]
    kinds, colours = KINDS, list(COLOURS)
    if random.random() < 0.3:
        kinds = random.sample(SHAPES, 2) + random.sample(KINDS, 1)
    if random.random() < 0.3:
        colours = random.sample(colours, 2)
    things = []
    for cell in sorted(random.sample(_cells(random), count)):
        kind = random.choice(SHAPES if kinds is KINDS and random.random() < 0.55 else kinds)
        colour = random.choice(colours)
        base, moved = random.choice(COLOURS[colour]), random.randint(-20, 20)
        red, green, blue = (min(255, max(0, value + moved + random.randint(-15, 15))) for value in base)
        shift = random.randint(-SHIFT, SHIFT), random.randint(-SHIFT, SHIFT)
        things.append(place(kind, colour, cell, random.choice(SIZES), (red, green, blue), shift))
    light = random.choice([255, 255, 250, 240])
    ground = (light, light, light) if random.random() < 0.7 else tuple(random.randint(228, 255) for _ in range(3))
    return Scene(tuple(things), ground)  # type: ignore[arg-type]


def _cells(random: Random) -> list[int]:
    """Return the cells that a scene may fill."""
    cells = list(range(GRID * GRID))
    if random.random() >= LINED_UP:
        return cells
    lines, across = random.sample(range(GRID), 2), random.random() < 0.5
    return [cell for cell in cells if (cell // GRID if across else cell % GRID) in lines]


def draw_scene(random: Random, *, held_out: bool, count: int | None = None) -> Scene:
    """Draw scenes until one is on the requested side of the split."""
    while True:
        found = scene(random, count)
        if found.held_out == held_out:
            return found


# Pictures


def draw(shown: Scene) -> Image.Image:
    """Return the picture of a scene."""
    picture = Image.new("RGB", (SIDE, SIDE), shown.ground)
    for thing in shown.things:
        draw_thing(ImageDraw.Draw(picture), thing.kind, thing.x, thing.y, thing.size, thing.fill)
    return picture


def draw_thing(canvas: ImageDraw.ImageDraw, kind: str, x: int, y: int, size: int, fill: Colour | int) -> None:
    """Draw a shape or a digit into the square of `size` pixels whose upper left corner is x, y."""
    end, middle = size - 1, (size - 1) / 2
    match kind:
        case "circle":
            canvas.ellipse((x, y, x + end, y + end), fill=fill)
        case "square":
            inset = size // 16
            canvas.rectangle((x + inset, y + inset, x + end - inset, y + end - inset), fill=fill)
        case "triangle":
            canvas.polygon([(x + middle, y), (x + end, y + end), (x, y + end)], fill=fill)
        case "star":
            points = [(turn * math.pi / 5, middle * (0.42 if turn % 2 else 1)) for turn in range(10)]
            canvas.polygon(
                [(x + middle + far * math.sin(angle), y + middle - far * math.cos(angle)) for angle, far in points],
                fill=fill,
            )
        case "cross":
            arm = size // 3
            canvas.rectangle((x + arm, y, x + end - arm, y + end), fill=fill)
            canvas.rectangle((x, y + arm, x + end, y + end - arm), fill=fill)
        case _:
            at, bold = (x + middle, y + middle), max(1, size // 24)
            canvas.text(at, kind, fill=fill, font=_font(size), anchor="mm", stroke_width=bold)


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font, whose digits are nearly `size` pixels high."""
    return ImageFont.load_default(size * 1.3)


# The same, fast


class Painter:
    """Paints scenes as the processor's resizes make tiles of their pictures, up to rounding."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int, int, int], NDArray[np.float32]] = {}
        every = Image.fromarray(np.eye(SEEN, dtype=np.float32))
        self._shrink = np.asarray(every.resize((SEEN, TILE), Image.Resampling.BILINEAR))  # [64, 128]

    def paint(self, scenes: Sequence[Scene]) -> NDArray[np.float32]:
        """Return the tiles of pictures, row by row, and each whole picture: [N, 5, 3, 64, 64] from 0 to 255."""
        room = SEEN + 2 * MARGIN + WIDTH
        pictures = np.empty((len(scenes), 3, room, room), np.float32)
        for index, shown in enumerate(scenes):
            pictures[index] = np.array(shown.ground, np.float32)[:, None, None]
            for thing in shown.things:
                part = self._part(thing.kind, thing.size, thing.x % SCALE, thing.y % SCALE)
                top, left = thing.y // SCALE, thing.x // SCALE
                square = pictures[index, :, top : top + WIDTH, left : left + WIDTH]
                square += part * (np.array(thing.fill, np.float32)[:, None, None] - square)
        inner = slice(MARGIN, MARGIN + SEEN)
        pictures = np.round(pictures[:, :, inner, inner])
        tiles = pictures.reshape(len(scenes), 3, SEEN // TILE, TILE, SEEN // TILE, TILE).transpose(0, 2, 4, 1, 3, 5)
        whole = np.round(self._shrink @ pictures @ self._shrink.T)
        return np.concatenate((tiles.reshape(len(scenes), -1, 3, TILE, TILE), whole[:, None]), 1)

    def _part(self, kind: str, size: int, right: int, down: int) -> NDArray[np.float32]:
        """Return how much of each pixel a thing covers, [WIDTH, WIDTH], MARGIN pixels from the corner and moved."""
        key = kind, size, right, down
        if key not in self._parts:
            mask = Image.new("L", (WIDTH * SCALE, WIDTH * SCALE))
            draw_thing(ImageDraw.Draw(mask), kind, MARGIN * SCALE + right, MARGIN * SCALE + down, size, 255)
            small = mask.resize((WIDTH, WIDTH), Image.Resampling.BILINEAR)
            self._parts[key] = np.asarray(small, np.float32) / 255
        return self._parts[key]


def cells_by_tile() -> list[int]:
    """Return the cells in the order of the tiles, and in each row by row."""
    side = GRID // TILE_CELLS
    return [
        (row * TILE_CELLS + down) * GRID + column * TILE_CELLS + right
        for row in range(side)
        for column in range(side)
        for down in range(TILE_CELLS)
        for right in range(TILE_CELLS)
    ]
