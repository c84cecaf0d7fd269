"""Generate tokens and time them: what every peer returns. Standard library only, because every peer imports it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True)
class Generation:
    """One continued prompt: the new token ids, the seconds until the first one (TTFT), and the seconds for the rest.

    peak_mib: the most memory that its process had meanwhile, the model and mapped files included; None where the system
    does not say it.
    """

    tokens: list[int]
    first_seconds: float
    rest_seconds: float
    peak_mib: float | None = None


Generate = Callable[[list[int], int], Generation]
"""Continue a prompt greedily by exactly N tokens. An end-of-text token never ends it."""

Logits = Callable[[list[int]], Any]
"""Compute the logits of one text in one run: ids of S tokens → a numpy array float32 [S, V]."""


def timed(tokens: Iterable[int], new: int) -> Generation:
    """Take `new` tokens from an iterable that computes each one on demand, and time them."""
    start = time.perf_counter()
    source = iter(tokens)
    drawn = [next(source)]
    middle = time.perf_counter()
    drawn += islice(source, new - 1)
    return Generation(drawn, middle - start, time.perf_counter() - middle)


class Stopwatch:
    """Time a runtime that runs its own loop and calls back with each token. The clock starts at creation."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._times = [time.perf_counter()]

    def record(self, token: int) -> None:
        """Record a token and the time of its arrival."""
        self._times.append(time.perf_counter())
        self.tokens.append(token)

    def generation(self) -> Generation:
        """Return the recorded tokens and their times."""
        start, first, *_, last = self._times
        return Generation(self.tokens, first - start, last - first)
