"""Place the boxes of a drawing in rows from top to bottom, and route the lines between them.

The steps are those of Sugiyama, Tagawa and Toda (1981): rows by longest path; dummy nodes for a line in every row that
it crosses, so that it avoids the boxes there; an order in each row with few crossings, from barycentres; and
coordinates by least squares.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

ORDERINGS, PLACINGS = 24, 60
"""Number of sweeps over all rows; more sweeps change nothing visible."""

STRAIGHT = 8.0
"""Weight of keeping a line straight between two dummy nodes, relative to a line between two boxes."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box to place. ports: x of its outputs, relative to its centre. Lengths are in any unit."""

    width: float
    height: float
    ports: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, order=True)
class Link:
    """A line from a port of one box to another box, both by number."""

    tail: int
    port: int
    head: int


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The part of a line between two rows. tail, head: numbers of boxes, or None where the line only passes."""

    row: int
    start: float
    end: float
    tail: int | None
    head: int | None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The placement. x: centres of the boxes, the leftmost edge being 0. rows: row of each box. width: total width.

    passing: row and x of lines that pass through a row.
    """

    x: tuple[float, ...]
    rows: tuple[int, ...]
    segments: tuple[Segment, ...]
    passing: tuple[tuple[int, float], ...]
    width: float


@dataclass
class _Item:
    """A box or, without one, a dummy node of a passing line, with its `row` and `x`."""

    width: float
    row: int
    box: int | None
    x: float = 0.0


def place(boxes: Sequence[Box], links: Iterable[Link], gap: float) -> Layout:
    """Lay boxes out. gap: distance between neighbours in a row. The links must not have a cycle."""
    unique = sorted(set(links))
    rows = _rows(len(boxes), unique)
    items = [_Item(box.width, rows[number], number) for number, box in enumerate(boxes)]
    edges = _with_dummies(items, boxes, unique)
    order = _ordered(items, edges)
    _set_x(items, edges, order, gap)

    left = min(item.x - item.width / 2 for item in items)
    for item in items:
        item.x -= left
    entries = _entries(items, boxes, edges)
    return Layout(
        x=tuple(item.x for item in items[: len(boxes)]),
        rows=tuple(rows),
        segments=tuple(
            Segment(
                row=items[edge.upper].row,
                start=items[edge.upper].x + edge.offset,
                end=items[edge.lower].x + entries[edge],
                tail=items[edge.upper].box,
                head=items[edge.lower].box,
            )
            for edge in edges
        ),
        passing=tuple((item.row, item.x) for item in items if item.box is None),
        width=max(item.x + item.width / 2 for item in items),
    )


@dataclass(frozen=True)
class _Edge:
    """A line between items of neighbouring rows. offset: where it leaves the upper item, relative to its centre."""

    upper: int
    lower: int
    offset: float


def _rows(count: int, links: Sequence[Link]) -> list[int]:
    """Return the row of each box: the longest path from the top; boxes without inputs move down to their readers."""
    above, below = defaultdict(set), defaultdict(set)
    for link in links:
        above[link.head].add(link.tail)
        below[link.tail].add(link.head)
    order: list[int] = []
    missing = {number: len(above[number]) for number in range(count)}
    ready = [number for number in range(count) if not missing[number]]
    while ready:
        number = ready.pop()
        order.append(number)
        for head in below[number]:
            missing[head] -= 1
            if not missing[head]:
                ready.append(head)
    assert len(order) == count, "a graph has no cycles"
    rows = [0] * count
    for number in order:
        rows[number] = max((rows[tail] + 1 for tail in above[number]), default=0)
    for number in reversed(order):
        if below[number] and not above[number]:
            rows[number] = min(rows[head] for head in below[number]) - 1
    used = sorted(set(rows))
    return [used.index(row) for row in rows]


def _with_dummies(items: list[_Item], boxes: Sequence[Box], links: Sequence[Link]) -> list[_Edge]:
    """Split long lines at every row; lines from one port share dummy nodes as long as possible."""
    stand_ins: dict[tuple[int, int, int], int] = {}
    edges: dict[_Edge, None] = {}
    for link in links:
        upper, offset = link.tail, boxes[link.tail].ports[link.port]
        for row in range(items[link.tail].row + 1, items[link.head].row):
            key = (link.tail, link.port, row)
            if key not in stand_ins:
                stand_ins[key] = len(items)
                items.append(_Item(0.0, row, None))
            edges[_Edge(upper, stand_ins[key], offset)] = None
            upper, offset = stand_ins[key], 0.0
        edges[_Edge(upper, link.head, offset)] = None
    return list(edges)


def _ordered(items: Sequence[_Item], edges: Sequence[_Edge]) -> list[list[int]]:
    """Return the items of each row from left to right, with few crossings."""
    above: dict[int, list[tuple[int, float]]] = defaultdict(list)
    below: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for edge in edges:
        above[edge.lower].append((edge.upper, edge.offset))
        below[edge.upper].append((edge.lower, 0.0))
    order: list[list[int]] = [[] for _ in range(max(item.row for item in items) + 1)]
    for number, item in enumerate(items):
        order[item.row].append(number)
    best, fewest = order, _crossings(order, edges)
    for sweep in range(ORDERINGS):
        order = [list(row) for row in order]
        near = below if sweep % 2 else above
        place = {number: float(at) for row in order for at, number in enumerate(row)}
        for row in reversed(order) if sweep % 2 else order:
            # Ports count a little, so that a box's outputs have the order of its ports.
            centres = {
                number: fmean(place[other] + 1e-3 * offset for other, offset in near[number])
                if near[number]
                else place[number]
                for number in row
            }
            # How ties are broken affects later rows: try both ways.
            tie = -1 if sweep % 4 > 1 else 1
            keys = {number: (centres[number], tie * place[number]) for number in row}
            row.sort(key=keys.__getitem__)
            place |= {number: float(at) for at, number in enumerate(row)}
        crossings = _crossings(order, edges)
        if crossings < fewest:
            best, fewest = order, crossings
    return best


def _crossings(order: Sequence[Sequence[int]], edges: Sequence[_Edge]) -> int:
    """Return the number of crossing pairs of lines."""
    place = {number: at for row in order for at, number in enumerate(row)}
    row_of = {number: at for at, row in enumerate(order) for number in row}
    ends: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for edge in edges:
        ends[row_of[edge.upper]].append((place[edge.upper] + 1e-3 * edge.offset, place[edge.lower]))
    return sum(
        (upper - other_upper) * (lower - other_lower) < 0
        for pairs in ends.values()
        for at, (upper, lower) in enumerate(pairs)
        for other_upper, other_lower in pairs[:at]
    )


def _set_x(items: list[_Item], edges: Sequence[_Edge], order: Sequence[Sequence[int]], gap: float) -> None:
    """Move each item towards the mean position that its lines want, as far as its row allows."""
    pulls: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for edge in edges:
        weight = STRAIGHT ** ((items[edge.upper].box is None) + (items[edge.lower].box is None) - 1)
        pulls[edge.lower].append((edge.upper, edge.offset, weight))
        pulls[edge.upper].append((edge.lower, -edge.offset, weight))
    for row in order:
        at = -sum(items[number].width + gap for number in row) / 2
        for number in row:
            items[number].x = at + items[number].width / 2
            at += items[number].width + gap
    for sweep in range(PLACINGS):
        for row in reversed(order) if sweep % 2 else order:
            wanted, weights = [], []
            for number in row:
                near = pulls[number]
                weight = sum(weight for _, _, weight in near)
                weights.append(max(weight, 1e-3))
                wanted.append(
                    sum((items[other].x + offset) * weight for other, offset, weight in near) / weight
                    if near
                    else items[number].x
                )
            apart = [(items[left].width + items[right].width) / 2 + gap for left, right in itertools.pairwise(row)]
            for number, x in zip(row, _apart(wanted, weights, apart), strict=True):
                items[number].x = x
    for _ in range(2):  # an obstacle of one run may have moved with another
        for run in _runs(items, edges):
            _straighten(run, items, order, gap)


def _runs(items: Sequence[_Item], edges: Sequence[_Edge]) -> list[list[int]]:
    """Return chains that should be straight: along a line, and through boxes with one line in and one out."""
    lines_in, lines_out = Counter(edge.lower for edge in edges), Counter(edge.upper for edge in edges)
    below: dict[int, int] = {}
    for edge in edges:
        pair = items[edge.upper].box, items[edge.lower].box
        passing = pair == (None, None)
        alone = lines_out[edge.upper] == lines_in[edge.lower] == 1 and edge.offset == 0
        if passing or alone:
            # If a line forks into two dummy nodes, the run continues with the first.
            below.setdefault(edge.upper, edge.lower)
    starts = [number for number in below if number not in set(below.values())]
    runs = []
    for number in starts:
        run = [number]
        while run[-1] in below:
            run.append(below[run[-1]])
        runs.append(run)
    return runs


def _straighten(run: Sequence[int], items: Sequence[_Item], order: Sequence[Sequence[int]], gap: float) -> None:
    """Give neighbours in a run the same x, where their rows have room for it."""
    together: list[int] = []
    low, high = -inf, inf
    for number in (*run, None):
        left, right = _room(number, items, order, gap) if number is not None else (inf, -inf)
        if max(low, left) > min(high, right):
            x = min(max(fmean(items[other].x for other in together), low), high)
            for other in together:
                items[other].x = x
            together, low, high = [], -inf, inf
        if number is not None:
            together.append(number)
            low, high = max(low, left), min(high, right)


def _room(number: int, items: Sequence[_Item], order: Sequence[Sequence[int]], gap: float) -> tuple[float, float]:
    """Return how far an item can move to either side before it meets its neighbours."""
    row = order[items[number].row]
    at = row.index(number)

    def reach(other: int) -> float:
        return (items[number].width + items[other].width) / 2 + gap

    left = items[row[at - 1]].x + reach(row[at - 1]) if at else -inf
    right = items[row[at + 1]].x - reach(row[at + 1]) if at + 1 < len(row) else inf
    # Rounding must not exclude the item's current position.
    return min(left, items[number].x), max(right, items[number].x)


def _apart(wanted: Sequence[float], weights: Sequence[float], apart: Sequence[float]) -> list[float]:
    """Return the positions closest to `wanted` by least squares that keep order and the distances `apart`.

    After subtracting the distances, positions must not decrease: isotonic regression, by pooling adjacent violators.
    """
    shifts = [0.0]
    for distance in apart:
        shifts.append(shifts[-1] + distance)
    pools: list[tuple[float, float, int]] = []  # mean, weight, size
    for place, shift, weight in zip(wanted, shifts, weights, strict=True):
        pools.append((place - shift, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (mean, heavy, size), (other, light, more) = pools[-2:]
            total = heavy + light
            pools[-2:] = [((mean * heavy + other * light) / total, total, size + more)]
    means = [mean for mean, _, size in pools for _ in range(size)]
    return [mean + shift for mean, shift in zip(means, shifts, strict=True)]


def _entries(items: Sequence[_Item], boxes: Sequence[Box], edges: Sequence[_Edge]) -> dict[_Edge, float]:
    """Return where lines enter the lower item, relative to its centre: spread over its top in their order."""
    entering: dict[int, list[_Edge]] = defaultdict(list)
    for edge in edges:
        entering[edge.lower].append(edge)
    places: dict[_Edge, float] = {}
    for number, several in entering.items():
        several.sort(key=lambda edge: items[edge.upper].x + edge.offset)
        width = items[number].width
        for at, edge in enumerate(several):
            places[edge] = ((at + 1) / (len(several) + 1) - 0.5) * width
    return places
