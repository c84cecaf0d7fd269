"""How many tokens to draft: as many as pay, by what the runs of this request took and how many drafts came true.

Times are told in steps, the time of a run of one token. A run of n tokens takes 1 + slope · (n - 1) steps, and gives
one token, and one for every draft that comes true:

    gain(k) = (1 + a + a² + … + aᵏ) / (1 + slope · (pending + k))        a: probability that a drafted token is right

The length is that with the largest gain, 0 where none is above that of no draft. Estimates may be wrong, so drafts are
also paid for from a budget: what they cost is taken from it, and what comes true is put into it. It starts with
FIRST_CREDIT and earns EARNED with every token, so a text of N tokens takes at most N + FIRST_CREDIT + EARNED · N steps.
"""

from collections import deque
from statistics import median

FIRST_CREDIT = 0.5
"""Steps that drafts may lose at the beginning: under 1 % of a text of 64 tokens."""

EARNED = 0.015
"""Steps that drafts may lose for every token. Together with FIRST_CREDIT it is 2.3 % of a text of 64 tokens."""

MOST_CREDIT = 4.0
"""Steps in the budget at most, so that what a copied passage won is not lost in a long passage of another kind."""

FIRST_SLOPE = 0.25
"""The slope before any run: onnxruntime's int4 products take about this on x86 (0.27), our kernels 0.1 (measured)."""

FIRST_RIGHT, FIRST_WRONG = 1.5, 0.5
"""Drafted tokens that count as seen before the first: three of four are right."""

KEPT = 0.9
"""Weight that evidence keeps with every verification: about the last ten count."""

KEPT_IDLE = 0.98
"""Weight that evidence keeps with every step without a draft: what did not pay is tried again after some dozens."""


class DraftLength:
    """Estimates of one request. most: tokens of a draft at most."""

    def __init__(self, most: int):
        self._most = most
        self._credit = FIRST_CREDIT
        self._steps: deque[float] = deque(maxlen=9)  # seconds; the median of few ignores what disturbs single runs
        self._slopes: deque[float] = deque([FIRST_SLOPE], maxlen=5)
        self._right = self._wrong = 0.0

    def choose(self, pending: int = 0) -> int:
        """Return how many tokens to draft. pending: tokens that the run has to repeat besides."""
        if not self._steps:
            return 0  # the first step says what a step takes
        slope = median(self._slopes)
        affordable = self._most if slope == 0 else int(self._credit / slope) - pending
        right = (self._right + FIRST_RIGHT) / (self._right + self._wrong + FIRST_RIGHT + FIRST_WRONG)
        best, most_gain = 0, 1 / (1 + slope * pending)
        expected = chance = 1.0
        for length in range(1, min(self._most, affordable) + 1):
            chance *= right
            expected += chance
            gain = expected / (1 + slope * (pending + length))
            if gain > most_gain:
                best, most_gain = length, gain
        return best

    def record_run(self, seconds: float, tokens: int, drafted: int) -> None:
        """Take account of a run of some tokens, of which `drafted` were drafted; seconds: with the time to draft."""
        if tokens == 1:
            self._steps.append(seconds)
        elif self._steps:
            step = median(self._steps)
            # No run takes less than a step, and none is worth more than two steps a token.
            self._slopes.append(min(max((seconds / step - 1) / (tokens - 1), 0.0), 2.0))
        self._earn(EARNED - median(self._slopes) * (tokens - 1))
        if not drafted:
            self._right *= KEPT_IDLE
            self._wrong *= KEPT_IDLE

    def record_drafts(self, right: int, wrong: bool) -> None:
        """Take account of a draft: tokens that were right, and whether the one behind them was wrong."""
        self._right = KEPT * self._right + right
        self._wrong = KEPT * self._wrong + wrong
        self._earn(right * (1 + EARNED))

    def _earn(self, steps: float) -> None:
        self._credit = min(self._credit + steps, MOST_CREDIT)
