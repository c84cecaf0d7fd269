"""A decoder of one row that runs ahead of the loop: drafted tokens are run with the token that they follow.

    the loop appends            t
    one run of the graph        t  d₁ d₂ d₃          logits after each
    the loop appends            d₁                   its logits are there
                                d₂                   its logits are there
                                x ≠ d₃               d₃ is taken back, and x begins the next run

A token is taken back by the length of the row. Where a layer has a state of fixed size, or a window that has lost
tokens by now, the cache is put back to where it was before the run, and the tokens that were right (t, d₁, d₂) are
pending: they come again at the beginning of the next run, which is cheaper than a run of their own.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from edgeformer.runtime.generation.speculation.draft_length import DraftLength
from edgeformer.runtime.generation.speculation.statistics import SpeculationStatistics
from edgeformer.runtime.steps.decode_graph import Logits, Tokens
from edgeformer.runtime.steps.memory import Mask
from edgeformer.runtime.steps.runner import Snapshot, StepRunner


class Drafter(Protocol):
    """Whoever guesses how a text goes on."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""

    def draft(self, count: int) -> list[int]:
        """Return up to `count` tokens that may come next."""


class SpeculativeDecoder:
    """Prefill and decode steps of one row, with drafts.

    drafter: has the text that this decoder has. length: decides how much is drafted. statistics: are counted here.
    """

    chooses_candidates = False  # drafts are compared with the logits of their runs

    def __init__(self, decoder: StepRunner, drafter: Drafter, length: DraftLength, statistics: SpeculationStatistics):
        self._decoder = decoder
        self._drafter = drafter
        self._length = length
        self._statistics = statistics
        self._pending: list[int] = []  # tokens of the row that the cache does not have
        self._snapshot: Snapshot | None = None  # of the cache before the tokens of the last run
        self._run: list[int] = []  # tokens of the last run
        self._drafted = 0  # of them, at the end
        self._accepted = 0  # of the drafted
        self._logits: Logits | None = None  # [drafted + 1, V] after the last token that the loop gave, and the drafted

    def prefill(self, row: int, tokens: Tokens) -> Logits:
        """Append a prompt; return the logits of its last token [V]."""
        self._drafter.extend([int(token) for token in tokens])
        return self._decoder.prefill(row, tokens)

    def decode_rows(
        self, first: int, tokens: Tokens, candidates: int | None = None, active: Mask | None = None
    ) -> Logits:
        """Append one token; return logits [1, V], which a later step overwrites. The rest is for rows of a batch."""
        assert first == 0 and len(tokens) == 1 and active is None, "drafts are of one row"
        token = int(tokens[0])
        self._drafter.extend([token])
        if self._logits is not None and self._accepted < self._drafted and token == self._next_draft():
            self._accepted += 1
            self._statistics.accept()
            return self._logits[self._accepted : self._accepted + 1]
        self.settle()
        return self._run_with_draft(token)

    def close_gaps(self, rows: Sequence[int]) -> list[int] | None:
        """Return None: there is one row."""
        return None

    def settle(self) -> None:
        """Take back the drafted tokens of the last run that were not chosen."""
        if self._drafted:
            wrong = self._accepted < self._drafted
            self._length.record_drafts(self._accepted, wrong)
            if wrong:
                self._take_back(len(self._run) - self._drafted + self._accepted)
            elif self._snapshot is not None:
                self._snapshot, self._pending = None, []
        self._drafted = self._accepted = 0

    def _next_draft(self) -> int:
        return self._run[len(self._run) - self._drafted + self._accepted]

    def _take_back(self, kept: int) -> None:
        """Leave the first `kept` tokens of the last run."""
        if self._snapshot is None:
            self._decoder.cut(0, int(self._decoder.lengths[0]) - len(self._run) + kept)
        else:
            self._decoder.restore(self._snapshot)
            self._pending = self._run[:kept]

    def _run_with_draft(self, token: int) -> Logits:
        """Run the pending tokens, one more, and what is drafted behind it; return the logits after the token [1, V]."""
        decoder, known = self._decoder, [*self._pending, token]
        started = time.perf_counter()
        length = int(decoder.lengths[0]) + len(known)
        # The last token of a request is never run, so a draft is no use beyond the one before it.
        count = min(self._length.choose(len(self._pending)), decoder.cache.capacity - length - 1)
        draft = self._drafter.draft(count) if count > 0 else []
        self._run, self._drafted = known + draft, len(draft)
        if not draft:
            self._snapshot = None
        elif self._snapshot is None and not decoder.can_cut(length + len(draft)):
            self._snapshot = decoder.snapshot()
        if len(self._run) == 1:
            self._logits = decoder.decode_one_token([token])
        else:
            self._logits = decoder.decode_tokens(0, self._run)[len(known) - 1 :]
        if not draft:
            self._pending = []
        self._length.record_run(time.perf_counter() - started, len(self._run), len(draft))
        self._statistics.count(len(draft))
        return self._logits[:1]
