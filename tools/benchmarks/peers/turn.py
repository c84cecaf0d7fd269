"""What a runtime does when asked, and how its seconds are taken. Standard library only: every peer imports it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True)
class Turn:
    """One prompt continued: the new tokens, the seconds until the first was known, and the seconds for the rest."""

    tokens: list[int]
    first_seconds: float
    rest_seconds: float


Generate = Callable[[list[int], int], Turn]
"""Continues a prompt by exactly so many tokens: greedily, and never ended by an end-of-text token."""

Logits = Callable[[list[int]], Any]
"""Reads a text by itself, all at once: a numpy array of float32 [S, V], the logits after each of its S tokens."""


def timed(tokens: Iterable[int], new: int) -> Turn:
    """Draw so many tokens from a loop that computes them when asked."""
    start = time.perf_counter()
    source = iter(tokens)
    drawn = [next(source)]
    middle = time.perf_counter()
    drawn += islice(source, new - 1)
    return Turn(drawn, middle - start, time.perf_counter() - middle)


class Stopwatch:
    """For a runtime that keeps its loop to itself and calls back with each token. Runs from when it is made."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._times = [time.perf_counter()]

    def saw(self, token: int) -> None:
        """Take the time of a token."""
        self._times.append(time.perf_counter())
        self.tokens.append(token)

    def turn(self) -> Turn:
        """What was seen."""
        start, first, *_, last = self._times
        return Turn(self.tokens, first - start, last - first)
