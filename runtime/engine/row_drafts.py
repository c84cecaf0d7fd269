"""Drafts of one request of an engine, used in the steps that it has to itself.

They come from prompt lookup, from a draft model, or from what structured output forces.

A step of several rows appends one token to each, since attention kernels take several new tokens over a past for one
row only. A step of one row may run its last token and a draft behind it; what is wrong is taken back in the same step,
so that between steps a row holds what it would hold without drafts.
"""

from collections.abc import Callable

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
    """Drafts of one row, and how much of them pays. The row gets the counts.

    new_drafter: makes the drafter before the first draft. A request that never runs alone needs none.
    """

    def __init__(self, row: Row, new_drafter: Callable[[], Drafter], length: DraftLength):
        row.speculation = SpeculationStatistics()
        self._row = row
        self._statistics = row.speculation
        self._new_drafter = new_drafter
        self._drafter: Drafter | None = None
        self._length = length
        self._known = 0  # tokens of the prompt and the answer that the drafter has

    def follow(self) -> None:
        """Let the drafter read what is new in the text. A draft model runs what it has missed: first, the prompt."""
        row = self._row
        if self._drafter is None:
            self._drafter = self._new_drafter()
        text, begun = (row.tokens, len(row.prompt)) if self._known else ([*row.prompt, *row.tokens], 0)
        self._drafter.extend(text[self._known - begun :])
        self._known = begun + len(text)

    def draft(self, decoder: Decoder, place: int) -> list[int]:
        """Return tokens that may come behind the row's last one; none where they do not pay or could not be taken back.

        place: the row in the decoder's cache.
        """
        row = self._row
        assert self._drafter is not None, "follow comes first"
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


def drafts_of(row: Row, config: GenerationConfig, new_draft_model: Callable[[], Drafter] | None) -> RowDrafts | None:
    """Return the drafts of a request, as `generate` chooses them: looked up, of a model, forced; None for none."""
    if config.prompt_lookup_num_tokens:
        ngram_size = config.max_matching_ngram_size
        return RowDrafts(row, lambda: PromptLookup(ngram_size), DraftLength(config.prompt_lookup_num_tokens))
    if new_draft_model is not None and config.num_assistant_tokens:
        return RowDrafts(row, new_draft_model, DraftLength(config.num_assistant_tokens))
    constraint = row.constraint
    return None if constraint is None else RowDrafts(row, lambda: ForcedTokens(constraint), forced_length())
