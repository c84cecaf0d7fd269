"""Drafts of one request of an engine, used in the steps that it has to itself.

They come from prompt lookup, from a draft model, or from what structured output forces.

A step of several rows appends one token to each, since attention kernels take several new tokens over a past for one
row only. A step of one row may run its last token and a draft behind it; what is wrong is taken back in the same step,
so that between steps a row holds what it would hold without drafts.
"""

import time
from collections.abc import Callable

from edgeformer.runtime.generation.generate import Row
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.speculation import (
    Drafter,
    DraftLength,
    ForcedTokens,
    PromptLookup,
    SpeculationStatistics,
    forced_length,
)
from edgeformer.runtime.steps.runner import StepRunner

CATCHING_UP = 16
"""Tokens that a draft model is told one by one, so that it runs them together with its draft: those of a verification,
or of a few steps without drafts. More are read in chunks, like a prompt."""


class RowDrafts:
    """Drafts of one row, and how much of them pays. The row gets the counts.

    new_drafter: makes the drafter before the first draft. A request that never runs alone needs none. chunk: tokens
    that it reads in one step at most; None where reading takes no time.
    """

    def __init__(
        self, row: Row, new_drafter: Callable[[], Drafter], length: DraftLength, chunk: int | None = None
    ) -> None:
        row.speculation = SpeculationStatistics()
        self._row = row
        self._statistics = row.speculation
        self._new_drafter = new_drafter
        self._drafter: Drafter | None = None
        self._length = length
        self._chunk = chunk
        self._known = 0  # tokens of the prompt and the answer that the drafter has
        self._reading = 0.0  # seconds of this step in which it read

    def draft(self, decoder: StepRunner, place: int) -> list[int]:
        """Return tokens that may come behind the row's last one; none where they do not pay or could not be taken back.

        place: the row in the decoder's cache. A drafter that has missed much of the text, as the prompt, reads a chunk
        of it instead.
        """
        row = self._row
        # The last token of a request is never run, so a draft is no use beyond the one before it.
        count = min(self._length.choose(), row.max_new_tokens - len(row.tokens) - 1)
        # A state, or a window that has lost tokens, would have to be copied before the step.
        if count < 1 or not decoder.can_cut(int(decoder.lengths[place]) + 1 + count):
            return []
        if self._drafter is None:
            self._drafter = self._new_drafter()
        return self._drafter.draft(count) if self._follow(self._drafter) else []

    def _follow(self, drafter: Drafter) -> bool:
        """Let the drafter read what is new in the text; return whether it has all of it."""
        row = self._row
        text, begun = [*row.prompt, *row.tokens], 0
        if self._known >= len(row.prompt):
            text, begun = row.tokens, len(row.prompt)
        missing = text[self._known - begun :]
        if len(missing) <= CATCHING_UP:
            for token in missing:
                drafter.extend([token])
        else:
            started = time.perf_counter()
            missing = missing[: self._chunk]
            drafter.extend(missing)
            self._reading = time.perf_counter() - started
        self._known += len(missing)
        return self._known == begun + len(text)

    def record(self, seconds: float, drafted: int, accepted: int) -> None:
        """Take account of a step: with the time to draft, of tokens drafted and those of them that were chosen."""
        # To read a prompt is no cost of a draft, nor is it one of a step.
        self._length.record_run(seconds - self._reading, 1 + drafted, drafted)
        self._reading = 0.0
        self._statistics.count(drafted)
        for _ in range(accepted):
            self._statistics.accept()
        if drafted:
            self._length.record_drafts(accepted, accepted < drafted)


def drafts_of(row: Row, config: GenerationConfig) -> RowDrafts | None:
    """Return the drafts that a request asks for, or those of its structured output; None without either."""
    if config.prompt_lookup_num_tokens:
        ngram_size = config.max_matching_ngram_size
        return RowDrafts(row, lambda: PromptLookup(ngram_size), DraftLength(config.prompt_lookup_num_tokens))
    constraint = row.constraint
    return None if constraint is None else RowDrafts(row, lambda: ForcedTokens(constraint), forced_length())
