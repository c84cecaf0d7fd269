"""Systems that are compared take turns, so that drift of the machine meets all alike.

Each has one turn before the clock counts. Then they run once a round, in an order that turns from round to round; a
ratio compares two turns of one round, which are neighbours in time. Used by the benchmarks beside it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeVar

Result = TypeVar("Result")

PAUSE_SECONDS = 0.25
"""Between turns: idle threads of OpenMP and onnxruntime spin for a while, and would take the next system's cores."""


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise one value a round."""
        return cls(median(values), min(values), max(values))


def take_turns(
    systems: Mapping[str, Callable[[], Result]], rounds: int, pause_seconds: float = PAUSE_SECONDS
) -> dict[str, list[Result]]:
    """What every system returned in each round. A system is called without arguments and takes its own time."""
    names = list(systems)
    for name in names:
        systems[name]()
    results: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            time.sleep(pause_seconds)
            results[name].append(systems[name]())
    return results


def compare(speeds: Mapping[str, Sequence[float]], ours: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Spreads as plain data: of each system's speed, and of the speed of `ours` over each other's, round by round."""
    ratios = {
        name: [mine / other for mine, other in zip(speeds[ours], theirs, strict=True)]
        for name, theirs in speeds.items()
        if name != ours
    }
    return _spreads(speeds), _spreads(ratios)


def _spreads(figures: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {name: asdict(Spread.of(values)) for name, values in figures.items()}


def cell(spread: Mapping[str, float] | None, digits: int) -> str:
    """A spread in a table: median (low..high); nothing for None."""
    if spread is None:
        return ""
    low, high = (f"{spread[side]:,.{digits}f}" for side in ("low", "high"))
    return f"{spread['median']:,.{digits}f} ({low}..{high})"
