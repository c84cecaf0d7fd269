"""Drafts of one request of an engine, by prompt lookup or of what is forced: used in the steps that it has to itself.

A step of several rows appends one token to each, since attention kernels take several new tokens over a past for one
row only. A step of one row may run its last token and a draft behind it; what is wrong is taken back in the same step,
so that between steps a row holds what it would hold without drafts.
"""

from edgeformer.runtime.decoder import Decoder
from edgeformer.runtime.generate import Row
from edgeformer.runtime.generation_config import GenerationConfig
from edgeformer.runtime.speculation import (
    Drafter,
    DraftLength,
    ForcedTokens,
    PromptLookup,
    SpeculationStatistics,
    forced_length,
)


class RowDrafts:
    """Drafts of one row, and how much of them pays. The row gets the counts."""

    def __init__(self, row: Row, drafter: Drafter, length: DraftLength):
        row.speculation = SpeculationStatistics()
        self._row = row
        self._statistics = row.speculation
        self._drafter = drafter
        self._length = length
        self._known = 0  # tokens of the prompt and the answer that the drafter has

    def draft(self, decoder: Decoder, place: int) -> list[int]:
        """Return tokens that may come behind the row's last one; none where they do not pay or could not be taken back.

        place: the row in the decoder's cache.
        """
        row = self._row
        text, begun = (row.tokens, len(row.prompt)) if self._known else ([*row.prompt, *row.tokens], 0)
        self._drafter.extend(text[self._known - begun :])
        self._known = begun + len(text)
        # The last token of a request is never run, so a draft is no use beyond the one before it.
        count = min(self._length.choose(), row.max_new_tokens - len(row.tokens) - 1)
        draft = self._drafter.draft(count) if count > 0 else []
        # A state, or a window that has lost tokens, would have to be copied before the step.
        return draft if decoder.can_cut(int(decoder.lengths[place]) + 1 + len(draft)) else []

    def record(self, seconds: float, drafted: int, accepted: int) -> None:
        """Take account of a step: with the time to draft, of tokens drafted and those of them that were chosen."""
        self._length.record_run(seconds, 1 + drafted, drafted)
        self._statistics.count(drafted)
        for _ in range(accepted):
            self._statistics.accept()
        if drafted:
            self._length.record_drafts(accepted, accepted < drafted)


def drafts_of(row: Row, config: GenerationConfig) -> RowDrafts | None:
    """Return the drafts that a request asks for, or those of its structured output; None without either."""
    if config.prompt_lookup_num_tokens:
        lookup = PromptLookup(config.max_matching_ngram_size)
        return RowDrafts(row, lookup, DraftLength(config.prompt_lookup_num_tokens))
    return None if row.constraint is None else RowDrafts(row, ForcedTokens(row.constraint), forced_length())
