"""How many tokens to draft: as many as pay, by what the runs of this request took and how many drafts came true.

Times are told in steps, the time of a run of one token. A run of n tokens takes 1 + slope · (n - 1) steps, and gives
one token, and one for every draft that comes true:

    gain(k) = (1 + a + a² + … + aᵏ) / (1 + slope · (pending + k))        a: probability that a drafted token is right

The length is that with the largest gain, 0 where none is above that of no draft. Estimates may be wrong, so drafts are
also paid for from a budget: what they took by the clock is taken from it, and what comes true is put into it. It starts
with a credit and earns EARNED with every token, so a text of N tokens takes at most N + credit + EARNED · N
steps, and what the last draft took beyond its estimate. Without credit, a step costs no search and no estimate.

Where several rows draft, a step gives a token of each, and a run of n tokens of each gives what comes true in all of
them. Its gain is the mean of theirs, and the slope and the budget are those of all.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

FIRST_CREDIT = 0.5
"""Steps that drafts may lose at the beginning: under 1 % of a text of 64 tokens."""

TRAINED_CREDIT = 2.0
"""Steps that a layer may lose which was trained to draft: it is mostly right, and one early miss says little."""

EARNED = 0.01
"""Steps that drafts may lose for every token. Together with FIRST_CREDIT it is 1.8 % of a text of 64 tokens."""

MOST_CREDIT = 4.0
"""Steps in the budget at most, so that what a copied passage won is not lost in a long passage of another kind; and the
largest debt, so that a run which another program held up does not end drafting."""

FIRST_SLOPE = 0.25
"""The slope before any run of several tokens: measured were 0.35 to 0.15 for runs of 2 to 11 (x86, int4)."""

FIRST_STEPS = 4
"""Steps of several rows without drafts, before any with."""

MOST_SLOPE = 2.0
"""No run of several tokens takes longer than two steps a token; what seems to was held up by another program."""

AFTER = 0.01
"""The slope of the step that follows: it takes 1.01 to 1.10 steps after runs of 2 to 11 tokens (measured)."""

FIRST_RIGHT, FIRST_WRONG = 1.5, 0.5
"""Drafted tokens that count as seen before the first: three of four are right."""

KEPT = 0.9
"""Weight that evidence keeps with every verification: about the last ten count."""

KEPT_IDLE = 0.98
"""Weight that evidence keeps with every step without a draft: what did not pay is tried again after some dozens."""


class RunCosts:
    """Estimates of what runs take, and a budget for drafts: of one request, or of all runs of so many rows.

    slope: taken as it is, so that lengths follow from the tokens alone, and not from the clock; None to measure it.
    credit: steps that drafts may lose at the beginning.
    """

    def __init__(self, slope: float | None = None, credit: float = FIRST_CREDIT, rows: int = 1):
        self.measured = slope is None
        self._credit = credit
        self._rows = rows
        self._steps: deque[float] = deque(maxlen=9)  # seconds
        self._slopes: deque[float] = deque(maxlen=5)
        self._slope = FIRST_SLOPE if slope is None else slope  # the median of those that were measured

    @property
    def known(self) -> bool:
        """Whether enough steps were run to say what one takes: the first of several rows takes longer."""
        return not self.measured or len(self._steps) >= (1 if self._rows == 1 else FIRST_STEPS)

    def best_length(self, rows: Sequence[tuple[float, int]], pending: int = 0) -> int:
        """Return how many tokens to draft for the rows of a run.

        rows: the probability that a drafted token is right, and the tokens of a draft at most, of each. pending: tokens
        that the run has to repeat besides.
        """
        if not self.known:
            return 0
        slope, longest = self._slope, max(most for _, most in rows)
        affordable = longest if slope == 0 else min(longest, int(self._credit / slope) - pending)
        if affordable < 1:
            return 0
        best, most_gain = 0, len(rows) / (1 + slope * pending)
        expected, chances = float(len(rows)), [1.0] * len(rows)
        for length in range(1, affordable + 1):
            for index, (right, most) in enumerate(rows):
                chances[index] *= right if length <= most else 0.0
            expected += sum(chances)
            gain = expected / (1 + slope * (pending + length))
            if gain > most_gain:
                best, most_gain = length, gain
        return best

    def record(self, seconds: float, tokens: int) -> None:
        """Take account of a run of some tokens of each row; seconds: with the time to draft."""
        self._earn(EARNED)
        if tokens == 1:
            self._steps.append(seconds)
        elif self.known:
            slope = self._measure(seconds, tokens) if self.measured else self._slope
            self._earn(-(slope + AFTER) * (tokens - 1))

    def forget_slope(self) -> None:
        """Measure anew what a token of a run takes."""
        self._slopes.clear()
        self._slope = FIRST_SLOPE

    def earn(self, tokens: int) -> None:
        """Take account of drafted tokens that were chosen, in any row."""
        self._earn(tokens * (1 + EARNED) / self._rows)

    def _measure(self, seconds: float, tokens: int) -> float:
        """Return the slope of a run, and take account of it for later ones."""
        # The lower quartile: other programs hold up some steps, which would make drafts look cheap.
        step = sorted(self._steps)[len(self._steps) // 4]
        slope = min(max((seconds / step - 1) / (tokens - 1), 0.0), MOST_SLOPE)
        self._slopes.append(slope)
        self._slope = median(self._slopes)
        return slope

    def _earn(self, steps: float) -> None:
        self._credit = min(max(self._credit + steps, -MOST_CREDIT), MOST_CREDIT)


class DraftLength:
    """Estimates of one request.

    most: tokens of a draft at most. slope, credit: as of `RunCosts`. costs: of runs that the request has to itself.
    """

    def __init__(self, most: int, slope: float | None = None, credit: float = FIRST_CREDIT):
        self.most = most
        self.costs = RunCosts(slope, credit)
        self._right = self._wrong = 0.0

    @property
    def right(self) -> float:
        """The probability that a drafted token is right."""
        return (self._right + FIRST_RIGHT) / (self._right + self._wrong + FIRST_RIGHT + FIRST_WRONG)

    def choose(self, pending: int = 0) -> int:
        """Return how many tokens to draft for a run of this row alone. pending: tokens that it has to repeat."""
        return self.costs.best_length([(self.right, self.most)], pending)

    def record_run(self, seconds: float, tokens: int, drafted: int) -> None:
        """Take account of a run of some tokens, of which `drafted` were drafted; seconds: with the time to draft."""
        self.costs.record(seconds, tokens)
        if not drafted:
            self.count(0, 0)

    def record_drafts(self, right: int, wrong: bool) -> None:
        """Take account of a draft: tokens that were right, and whether the one behind them was wrong."""
        self.count(right + wrong, right)
        self.costs.earn(right)

    def forget(self) -> None:
        """Let what came true earlier count half."""
        self._right /= 2
        self._wrong /= 2

    def count(self, drafted: int, right: int) -> None:
        """Count the drafted tokens of a run and those that were right, as evidence for later drafts."""
        if drafted:
            self._right = KEPT * self._right + right
            self._wrong = KEPT * self._wrong + (right < drafted)
        else:
            self._right *= KEPT_IDLE
            self._wrong *= KEPT_IDLE
