"""Drafts of what structured output forces: the names of a JSON schema, its quotes, colons and braces."""

from collections.abc import Sequence

from edgeformer.runtime.generation.sampling.structured_output import Constraint
from edgeformer.runtime.generation.speculation.draft_length import FIRST_SLOPE, DraftLength

MOST_FORCED = 12
"""Tokens of a draft at most. A run of 8 to 11 tokens takes 1.9 to 3.5 steps (docs/explanation/speculation.md)."""


class ForcedTokens:
    """A drafter for a row with structured output. The model may still spell the same text by other tokens."""

    def __init__(self, constraint: Constraint):
        self._constraint = constraint

    def extend(self, tokens: Sequence[int]) -> None:
        """Do nothing: the row gives its tokens to the constraint."""

    def draft(self, count: int) -> list[int]:
        """Return up to `count` tokens that may come next."""
        return self._constraint.forced[:count]


def forced_length() -> DraftLength:
    """Return the length of such drafts, which nobody asks for: it must not make a text depend on the clock.

    A run of several tokens rounds otherwise than steps, and some products of integers turn that into other tokens.
    """
    return DraftLength(MOST_FORCED, slope=FIRST_SLOPE)
