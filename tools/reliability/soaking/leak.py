"""Tell memory that grows with the number of requests from the noise of an allocator.

The first part of a run fills caches and pools, so it is left out. The rest is cut into blocks, whose medians leave out
the peaks of single requests. A line through the medians has a slope with a standard error.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WARM_UP = 0.4
"""Part of a run that is left out."""

LEAST_REQUESTS = 2000
"""Requests after the warm-up from which growth is told: an allocator takes a megabyte at a time."""

BLOCKS = 12

ERRORS = 2.0
"""Standard errors by which a slope must exceed the limit to count: about 1 in 40 flat runs lies that far off."""

LIMIT = 300.0
"""Bytes a request that are no leak. The least that a server can keep of a request, its record, has 1,500."""


@dataclass(frozen=True)
class Growth:
    """How memory grew. slope, error: bytes a request, and their standard error. requests: after the warm-up.

    limit: bytes a request that are no leak.
    """

    slope: float
    error: float
    requests: int
    first_mb: float
    last_mb: float
    limit: float = LIMIT

    @property
    def leaks(self) -> bool:
        """Whether the slope is above the limit by more than noise."""
        return self.slope - ERRORS * self.error > self.limit

    def __str__(self) -> str:
        return (
            f"{self.slope:,.0f} ± {ERRORS * self.error:,.0f} bytes a request over {self.requests:,} requests, "
            f"{self.first_mb:,.1f} MB then {self.last_mb:,.1f} MB"
        )


def growth(samples: Sequence[tuple[int, int]], least: int = LEAST_REQUESTS, limit: float = LIMIT) -> Growth | None:
    """Return how memory grew in pairs of requests done and bytes; None for fewer than `least`, too few to tell."""
    if not samples:
        return None
    warm = [pair for pair in samples if pair[0] >= WARM_UP * samples[-1][0]]
    if len(warm) < 2 * BLOCKS or warm[-1][0] - warm[0][0] < least:
        return None
    medians = np.array([np.median(block, axis=0) for block in np.array_split(np.array(warm, np.float64), BLOCKS)])
    requests, memory = medians[:, 0] - medians[:, 0].mean(), medians[:, 1] - medians[:, 1].mean()
    spread = float((requests**2).sum())
    if spread == 0:
        return None
    slope = float((requests * memory).sum()) / spread
    rest = memory - slope * requests
    error = float(np.sqrt((rest**2).sum() / (BLOCKS - 2) / spread))
    first, last = (float(value) / 1e6 for value in medians[[0, -1], 1])
    return Growth(slope, error, int(warm[-1][0] - warm[0][0]), first, last, limit)
