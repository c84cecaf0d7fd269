"""Prompt lookup: draft what came after the last tokens when they came before, in the prompt or in the new text.

Source: https://github.com/apoorvumang/prompt-lookup-decoding; `prompt_lookup_num_tokens` of transformers.
"""

from collections.abc import Sequence

MISSES = 3
"""Tokens in a row that differ from the passage that is copied, after which it is given up."""


class PromptLookup:
    """An index of the n-grams of a text that grows.

    max_ngram: tokens of the longest n-grams that are searched for; shorter ones follow, down to two tokens. Where an
    n-gram came several times, the last time counts. Where none came, a passage that was copied until just now goes on
    behind a token that was replaced.
    """

    def __init__(self, max_ngram: int):
        self._sizes = range(max_ngram, min(2, max_ngram) - 1, -1)  # the longest first
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # of each n-gram but the text's last ones: the place behind it
        self._period = 0  # how far back the passage is that is being copied; 0 for none
        self._misses = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        text = self._tokens
        for token in tokens:
            # The n-grams that end the text so far have a continuation now.
            end = len(text)
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(text[end - size :])] = end
            if self._period:
                self._misses = 0 if text[end - self._period] == token else self._misses + 1
                self._period = self._period if self._misses < MISSES else 0
            text.append(int(token))

    def draft(self, count: int) -> list[int]:
        """Return up to `count` tokens that may come next; none where the last tokens are new.

        A text that repeats itself is drafted as going on like this: the copy may reach into the draft.
        """
        text = self._tokens
        for size in self._sizes:
            place = self._ends.get(tuple(text[-size:]))
            if place is not None:
                self._period, self._misses = len(text) - place, 0
                break
        period = self._period
        return [text[len(text) - period + index % period] for index in range(count)] if period else []
