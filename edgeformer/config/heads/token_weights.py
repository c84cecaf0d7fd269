"""The head that makes a weight of every token, for lexical search (BGE-M3, arXiv 2402.03216)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.heads.head import Head, HeadOutput, Sizes


@dataclass(frozen=True, kw_only=True)
class TokenWeightsHead(Head):
    """Weights [B, S] of the tokens: relu(w · x + b). A token that a text has several times has the largest of them.

    Attributes:
        skipped_tokens: tokens without a weight, such as [CLS]. It changes nothing in a graph.
    """

    words: ClassVar[str] = "weights of tokens"
    kind: Literal["token_weights"] = "token_weights"
    skipped_tokens: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the weights of the tokens."""
        return (HeadOutput(name="token_weights", gives="token weights", axes=("tokens",)),)

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of the projection to one number."""
        return sizes.hidden + 1

    def products(self, sizes: Sizes) -> int:
        """Return the weights of the projection."""
        return sizes.hidden
