"""The base class of the heads of encoders: each says what it gives, and how many weights it has."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

Gives = Literal[
    "words", "classes", "token classes", "answers", "vector", "sparse vector", "token weights", "token vectors",
]  # fmt: skip
"""The meaning of an output for a text: the words in its gaps, its classes, those of its tokens, where an answer in it
begins or ends, a vector of it, one with a number for every token of the vocabulary, a number for every token of the
text, or a vector for each of these."""


@dataclass(frozen=True, kw_only=True)
class HeadOutput:
    """An output of a graph that a head computes.

    Attributes:
        name: of the tensor.
        gives: what it says of a text.
        axes: those of one text, [S, …] where there is something for every token.
    """

    name: str
    gives: Gives
    axes: tuple[str, ...]

    @property
    def per_token(self) -> bool:
        """Whether the tensor has something for every token, so that its second axis is the tokens."""
        return self.axes[0] == "tokens"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of an encoder that its head is made for: of states, of rows of the table of tokens, and its rows."""

    hidden: int
    embedding: int
    vocabulary: int


class Head(ABC):
    """The base class of the configs of heads. words: its name in descriptions."""

    words: ClassVar[str]

    @property
    @abstractmethod
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the outputs of a graph that the head computes, in order."""

    @property
    def expands_unattended(self) -> bool:
        """Whether tokens that attention does not see count, too, so that they need positions of their own."""
        return False

    @property
    def reads_ids(self) -> bool:
        """Whether the outputs depend on token ids, and not on states alone."""
        return self.end_token is not None

    @property
    def end_token(self) -> int | None:
        """Return the id of a token whose place in a text the outputs depend on; None where there is no such token."""
        return None

    @property
    def parts(self) -> "tuple[Head, ...]":
        """Return the heads that it is made of: itself."""
        return (self,)

    @abstractmethod
    def weights(self, sizes: Sizes) -> int:
        """Return the number of the head's parameters."""

    def products(self, sizes: Sizes) -> int:
        """Return the number of weights that every token is multiplied with: 0 where all is done once per text."""
        return 0
