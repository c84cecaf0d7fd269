"""Run the compared systems in alternation, so that drift of the machine affects all of them alike.

Each system runs once untimed. Then each runs once a round, in an order that rotates from round to round; a ratio
compares two runs of the same round, which are close in time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeVar

from rich.console import Console

WIDTH = 120
"""Columns of a report without a terminal."""

Result = TypeVar("Result")

PAUSE_SECONDS = 0.25
"""Seconds between runs: idle threads of OpenMP and onnxruntime spin for a while, on the next system's cores."""


@dataclass(frozen=True)
class Spread:
    """Median and range of a figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise one value per round."""
        return cls(median(values), min(values), max(values))


def run_interleaved(
    systems: Mapping[str, Callable[[], Result]], rounds: int, pause_seconds: float = PAUSE_SECONDS
) -> dict[str, list[Result]]:
    """Run every system once a round and return its results by round. A system takes no arguments and times itself."""
    names = list(systems)
    for name in names:
        systems[name]()
    results: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(pause_seconds)
            results[name].append(systems[name]())
    return results


def compare(speeds: Mapping[str, Sequence[float]], ours: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return, as plain data, the spreads of each system's speed and of the ratio of `ours` to each other system's."""
    ratios = {
        name: [mine / other for mine, other in zip(speeds[ours], theirs, strict=True)]
        for name, theirs in speeds.items()
        if name != ours
    }
    return _spreads(speeds), _spreads(ratios)


def _spreads(figures: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {name: asdict(Spread.of(values)) for name, values in figures.items()}


def cell(spread: Mapping[str, float] | None, digits: int) -> str:
    """Format a spread for a table as `median (low..high)`; empty for None."""
    if spread is None:
        return ""
    low, high = (f"{spread[side]:,.{digits}f}" for side in ("low", "high"))
    return f"{spread['median']:,.{digits}f} ({low}..{high})"


def report_console() -> Console:
    """Return a console as wide as the terminal or, without one, wide enough that no cell of a report is cut."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)
