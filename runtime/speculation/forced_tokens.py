"""Drafts of what structured output forces: the names of a JSON schema, its quotes, colons and braces."""

from collections.abc import Sequence
from typing import Protocol

MOST_FORCED = 12
"""Tokens of a draft at most. A run of 8 to 11 tokens takes 1.9 to 3.5 steps (docs/explanation/speculation.md)."""


class Forcing(Protocol):
    """The text that a row must go on with."""

    @property
    def forced(self) -> Sequence[int]:
        """The next tokens, as the tokenizer writes the text that must come; none where the text may be any."""


class ForcedTokens:
    """A drafter for a row with structured output. The model may still spell the same text by other tokens."""

    def __init__(self, constraint: Forcing):
        self._constraint = constraint

    def extend(self, tokens: Sequence[int]) -> None:
        """Do nothing: the row gives its tokens to the constraint."""

    def draft(self, count: int) -> list[int]:
        """Return up to `count` tokens that may come next."""
        return list(self._constraint.forced[:count])
