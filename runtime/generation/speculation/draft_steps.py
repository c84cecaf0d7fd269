"""Steps of rows that draft: a draft of each, one run that verifies them all, and what is taken back.

    row 0   … t  d₁ d₂ d₃         logits after each token, of each row
    row 1   … t  d₁ ·  ·          a shorter draft is padded
    row 2   … t  ·  ·  ·          so is a row whose drafter knows nothing

What was wrong and what was padding is taken back by the lengths of the rows. So rows that cannot be cut draft only
alone, where a copy puts them back (`RowDrafts`), and so do all rows where onnxruntime attends: it takes several new
tokens over a past for one row only.

A step of several rows drafts where all of them ask for drafts: a run of several tokens rounds otherwise than a step,
and by the clock, which no row gets that did not ask. A row alone has its own budget, and rows together have one by
their number (`RunCosts`), as they take a step together.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeformer.runtime.generation.speculation.draft_length import RunCosts
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts
from edgeformer.runtime.steps.runner import StepRunner

MOST_ROWS = 4
"""Rows that draft together: with more, a batch leaves little to gain."""

MOST_TOKENS = 16
"""Tokens of a run of several rows. One of 4 × 4 took 1.9 steps of four rows, and one of 2 × 8 two steps of two
(docs/explanation/speculation.md)."""

MEASURED_AGAIN = 32
"""Steps of several rows with drafts, or without, behind which the other ones are measured again: rows come and go, so
what either takes changes, and other programs may have held up a few."""

MOST_WITHOUT = 512
"""Steps without drafts at most until then. Each attempt in vain doubles them: drafters first read what they missed."""

ASKED_AGAIN = 8
"""Steps of several rows behind one whose drafts do not pay before they may: to see that takes time, too."""


class DraftSteps:
    """Runs steps of adjacent rows that draft, from the first one's `place` in the decoder's cache on.

    if steps.draft(place, rows):        always, for a row alone
        drafts, logits = steps.run(place, rows, few)
        …                               the rows choose tokens
        steps.settle(place, rows, accepted)
    """

    def __init__(self, decoder: StepRunner):
        self._decoder = decoder
        self._costs = {rows: RunCosts(rows=rows) for rows in range(2, MOST_ROWS + 1)}
        self._with_drafts = self._without = 0  # steps of several rows, since the last one of the other kind
        self._attempt_after = MEASURED_AGAIN  # steps without
        self._asked_in = 0  # steps
        self._started = self._seconds = 0.0  # of the last draft and its run
        self._drafts: list[list[int]] = []

    def begin(self, rows: Sequence[RowDrafts]) -> bool:
        """Return whether these rows may draft together, which are all that run from now on, and all several."""
        self._asked_in = 0
        if not self._decoder.graph.appends_to_rows or not 2 <= len(rows) <= MOST_ROWS:
            return False
        return all(row.length.costs.measured for row in rows)

    def draft(self, place: int, rows: Sequence[RowDrafts]) -> bool:
        """Draft for each row; return False for several without any draft that pays, whose step is one without."""
        if len(rows) > 1 and self._asked_in:
            self._asked_in -= 1
            return False
        self._started = time.perf_counter()
        for row in rows:
            row.reading = 0.0
        if len(rows) == 1:
            self._drafts = [rows[0].draft()]
            return True
        self._drafts = self._draft_together(place, rows)
        return any(self._drafts)

    def _draft_together(self, place: int, rows: Sequence[RowDrafts]) -> list[list[int]]:
        """Return drafts of several rows; none where they do not pay."""
        count, decoder = len(rows), self._decoder
        if self._with_drafts == MEASURED_AGAIN:
            self._attempt_after = MEASURED_AGAIN
            self._asked_in = 1  # the first step behind runs of several tokens takes longer
            return []
        longest = max(decoder.lengths[place : place + count].tolist()) + 1
        most = min(MOST_TOKENS // count - 1, decoder.cache.capacity - longest)
        costs, rights = self._costs[count], [row.length.right for row in rows]
        rooms = [min(row.length.most, row.room, most) for row in rows]
        length = costs.best_length(list(zip(rights, rooms, strict=True)))
        if not length or not decoder.can_cut(longest + length):
            self._asked_in = ASKED_AGAIN if costs.known else 0
            return []
        drafts: list[list[int]] = []
        for row in rows:
            # Others wait while a drafter reads a chunk of a text, so one of them does in a step.
            reads = any(other.reading for other in rows)
            drafts.append([] if reads else row.propose(length))
        if any(drafts):
            length = costs.best_length([(right, len(draft)) for right, draft in zip(rights, drafts, strict=True)])
        return [draft[:length] for draft in drafts]

    def run(self, place: int, rows: Sequence[RowDrafts], few: int | None) -> tuple[list[list[int]], Any]:
        """Run the last token of each row and its draft; return the drafts and the logits, [1 + n, V] of each row.

        few: how many candidates are enough, where there is no draft (`StepRunner.decode_rows`).
        """
        decoder, drafts = self._decoder, self._drafts
        if len(rows) > 1:
            tokens = np.zeros((len(rows), 1 + max(map(len, drafts))), np.int64)
            for run, row, draft in zip(tokens, rows, drafts, strict=True):
                run[: 1 + len(draft)] = [row.last_token, *draft]
            logits: Any = decoder.decode_together(place, tokens)
        elif drafts[0] or rows[0].pending:
            logits = [rows[0].run(decoder, place, drafts[0])]
        else:
            logits = [decoder.decode_rows(place, [rows[0].last_token], few)]
        self._seconds = time.perf_counter() - self._started
        return drafts, logits

    def settle(self, place: int, rows: Sequence[RowDrafts], accepted: Sequence[int]) -> None:
        """Take back what was drafted and not chosen, and take account of the step. accepted: tokens of each row."""
        decoder, drafted = self._decoder, [len(draft) for draft in self._drafts]
        if len(rows) == 1:
            [row] = rows
            tokens = len(row.pending) + 1 + drafted[0]
            if tokens > 1:
                row.settle(decoder, place, drafted[0] - accepted[0])
            row.record(self._seconds, tokens, drafted[0], accepted[0])
            return
        width, costs = max(drafted), self._costs[len(rows)]
        costs.record(self._seconds - sum(row.reading for row in rows), 1 + width)
        costs.earn(sum(accepted))
        self._with_drafts, self._without = self._with_drafts + 1, 0
        for index, row in enumerate(rows):
            decoder.cut(place + index, int(decoder.lengths[place + index]) - (width - accepted[index]))
            row.record_beside(drafted[index], accepted[index])

    def record_step(self, seconds: float, rows: Sequence[RowDrafts]) -> None:
        """Take account of a step of several rows without drafts. seconds: of its run."""
        costs = self._costs[len(rows)]
        costs.record(seconds, 1)
        self._with_drafts, self._without = 0, self._without + 1
        if self._without == self._attempt_after:
            self._without, self._attempt_after = 0, min(2 * self._attempt_after, MOST_WITHOUT)
            costs.forget_slope()
            for row in rows:
                row.length.forget()
