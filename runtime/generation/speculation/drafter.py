"""The interface of drafters."""

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Whoever guesses how a text goes on."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""

    def draft(self, count: int) -> list[int]:
        """Return up to `count` tokens that may come next."""
