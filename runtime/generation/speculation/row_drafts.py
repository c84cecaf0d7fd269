"""Drafts of one row: a step that it has to itself runs its last token and a draft behind it.

    tokens of the row           … t
    one run of the graph        t  d₁ d₂ d₃          logits after each
    the row chooses             d₁                   as drafted, so the next logits are there
                                d₂                   as drafted
                                x ≠ d₃               d₃ is taken back, and x begins the next run

A token is taken back by the length of the row. Where a layer has a state of fixed size, or a window that has lost
tokens by now, the row is put back to where it was before the run, and the tokens that were right (t, d₁, d₂) are
pending: they come again at the beginning of the next run, which is cheaper than a run of their own.

Where several rows run, `DraftSteps` asks each for a draft.
"""

import time
import warnings
from collections.abc import Callable, Sequence

from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.speculation.draft_length import DraftLength
from edgeformer.runtime.generation.speculation.drafter import Drafter
from edgeformer.runtime.generation.speculation.forced_tokens import ForcedTokens, forced_length
from edgeformer.runtime.generation.speculation.prompt_lookup import PromptLookup
from edgeformer.runtime.generation.speculation.statistics import SpeculationStatistics
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.runner import Snapshot, StepRunner

CATCHING_UP = 16
"""Tokens that a draft model is told one by one, so that it runs them together with its draft: those of a verification,
or of a few steps without drafts. More are read in chunks, like a prompt."""


class RowDrafts:
    """Drafts of one row, and how much of them pays. The row gets the counts.

    new_drafter: makes the drafter before the first draft. A row that never runs alone needs none. chunk: tokens that it
    reads in one step at most; None for all that is new. pending: tokens of the row that its cache does not have, but
    for the last one.
    """

    def __init__(
        self, row: Row, new_drafter: Callable[[], Drafter], length: DraftLength, chunk: int | None = None
    ) -> None:
        row.speculation = SpeculationStatistics()
        self.pending: list[int] = []
        self.length = length
        self._row = row
        self._statistics = row.speculation
        self._new_drafter = new_drafter
        self._drafter: Drafter | None = None
        self._chunk = chunk
        self._failed = False
        self._known = 0  # tokens of the prompt and the answer that the drafter has
        self.reading = 0.0  # seconds of this step in which the drafter was made, and read; set to 0 before each
        self._before: Snapshot | None = None  # the row before the pending tokens, where it cannot be cut
        self._run: list[int] = []  # tokens of the last run

    @property
    def room(self) -> int:
        """Tokens of a draft that the row has use for."""
        # The last token of a request is never run, so a draft is no use beyond the one before it.
        return 0 if self._failed else self._row.max_new_tokens - len(self._row.tokens) - 1

    @property
    def last_token(self) -> int:
        """The row's last token, which the next run begins with."""
        return self._row.tokens[-1]

    def draft(self) -> list[int]:
        """Return tokens that may come behind the row's last one; none where they do not pay."""
        return self.propose(self.length.choose(len(self.pending)))

    def propose(self, count: int) -> list[int]:
        """Return up to `count` tokens that may come behind the row's last one.

        A drafter that has missed much of the text, as the prompt, reads a chunk of it instead. Where drafting fails, as
        for want of memory, the row goes on without drafts.
        """
        count = min(count, self.room)
        if count < 1:
            return []
        try:
            drafter = self._drafter or self._begin()
            return drafter.draft(count) if self._follow(drafter) else []
        except Exception as error:  # of onnxruntime, which has no base class of its own
            self._failed = True
            warnings.warn(f"a request goes on without drafts: {error}", stacklevel=2)
            return []

    def _begin(self) -> Drafter:
        """Make the drafter."""
        started = time.perf_counter()
        self._drafter = self._new_drafter()
        self.reading = time.perf_counter() - started
        return self._drafter

    def _follow(self, drafter: Drafter) -> bool:
        """Let the drafter read what is new in the text; return whether it has all of it."""
        row = self._row
        text, begun = row.tokens, len(row.prompt)
        if self._known < begun:
            text, begun = [*row.prompt_ids, *row.tokens], 0
        missing = text[self._known - begun :]
        if self._known and len(missing) <= CATCHING_UP:
            for token in missing:
                drafter.extend([token])
        else:
            started = time.perf_counter()
            missing = missing[: self._chunk]
            drafter.extend(missing)
            self.reading += time.perf_counter() - started
        self._known += len(missing)
        return self._known == begun + len(text)

    def run(self, decoder: StepRunner, place: int, draft: list[int]) -> Logits:
        """Run what is pending, the row's last token and a draft; return the logits after the token and each drafted.

        place: the row in the decoder's cache. The logits [1 + n, V] are overwritten by the next run.
        """
        tokens = self._run = [*self.pending, self.last_token, *draft]
        if draft and self._before is None and not decoder.can_cut(int(decoder.lengths[place]) + len(tokens)):
            self._before = decoder.snapshot(place)
        return decoder.decode_tokens(place, tokens)[len(self.pending) :]

    def settle(self, decoder: StepRunner, place: int, wrong: int) -> None:
        """Take back the last tokens of the last run, which were drafted and not chosen."""
        if not wrong:
            self._before, self.pending = None, []
        elif self._before is None:
            decoder.cut(place, int(decoder.lengths[place]) - wrong)
        else:
            decoder.restore(self._before, place)
            self.pending = self._run[:-wrong]

    def catch_up(self, decoder: StepRunner, place: int) -> None:
        """Run what is pending, so that the row may join a step of several."""
        if self.pending:
            decoder.decode_tokens(place, self.pending)
            self._before, self.pending = None, []

    def record(self, seconds: float, tokens: int, drafted: int, accepted: int) -> None:
        """Take account of a step: with the time to draft, of its tokens, the drafted ones, and those that were chosen.

        seconds: to draft, and to run the tokens.
        """
        # To make a drafter and to read a prompt are no costs of a draft, nor are they costs of a step.
        self.length.record_run(seconds - self.reading, tokens, drafted)
        if drafted:
            self.length.record_drafts(accepted, accepted < drafted)
        self.count(drafted, accepted)

    def record_beside(self, drafted: int, accepted: int) -> None:
        """Take account of a step of several rows, which counts its costs for all of them."""
        self.length.count(drafted, accepted)
        self.count(drafted, accepted)

    def count(self, drafted: int, accepted: int) -> None:
        """Count a step for the row's statistics."""
        self._statistics.count(drafted)
        for _ in range(accepted):
            self._statistics.accept()


def drafts_of(row: Row, config: GenerationConfig, text: Sequence[int] = ()) -> RowDrafts | None:
    """Return the drafts that a request asks for, or those of its structured output; None without either.

    text: tokens that drafts may be copied from, before those of the row.
    """

    def new_lookup() -> PromptLookup:
        lookup = PromptLookup(config.max_matching_ngram_size)
        lookup.extend(text)
        return lookup

    if config.prompt_lookup_num_tokens:
        return RowDrafts(row, new_lookup, DraftLength(config.prompt_lookup_num_tokens))
    constraint = row.constraint
    return None if constraint is None else RowDrafts(row, lambda: ForcedTokens(constraint), forced_length())
