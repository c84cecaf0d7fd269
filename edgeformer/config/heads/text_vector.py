"""The head of a dual encoder's text half, which makes a vector in the space that pictures share."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.heads.head import Head, HeadOutput, Sizes
from edgeformer.documents.schema import check

PooledPlace = Literal["last", "largest", "end"]
"""The token of a text whose state is pooled: the last one, which may be padding; the first of those with the largest
id; or the first end token, and the first token of a text without one."""


@dataclass(frozen=True, kw_only=True)
class TextVectorHead(Head):
    """Vector [B, D] of a text: a linear map of the state of one of its tokens. It is not scaled to length one.

    Attributes:
        output: the name of the tensor, as transformers' class of the text half has it.
        size: numbers of the vector.
        bias: whether the map has one.
        place: the token.
        end: id of the end token, for that place; None for others.
    """

    words: ClassVar[str] = "vector beside pictures"
    kind: Literal["text_vector"] = "text_vector"
    output: Literal["text_embeds", "pooler_output"]
    size: int
    bias: bool
    place: PooledPlace
    end: int | None = None

    def __post_init__(self) -> None:
        check(self.size > 0, self, "size", "positive")
        check((self.place == "end") == (self.end is not None), self, "end", "set for the place `end`, and only there")

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the vector of a text."""
        return (HeadOutput(name=self.output, gives="vector", axes=("numbers",)),)

    @property
    def reads_ids(self) -> bool:
        """Whether ids say which token is pooled."""
        return self.place != "last"

    @property
    def end_token(self) -> int | None:
        """Return the end token."""
        return self.end

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of the map."""
        return self.size * (sizes.hidden + self.bias)
