"""The head that makes a vector of every token, for late interaction (ColBERT, arXiv 2004.12832)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.heads.head import Head, HeadOutput, Sizes
from edgeformer.config.heads.pooling import PoolingLayer
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """Tokens behind a query, up to a number of tokens in all, whose vectors count as those of the query do.

    Attributes:
        token: the one that is repeated, such as [MASK].
        length: tokens of the query with them.
        attended: whether the tokens of the query attend to them.
    """

    token: int
    length: int
    attended: bool

    def __post_init__(self) -> None:
        check(self.length > 0, self, "length", "positive")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a text of one role is read, and which of its tokens count. It changes nothing in a graph.

    Attributes:
        prompt: a text before it.
        prefix: a token behind its first one; None for none.
        max_length: tokens to which it is cut; None for those that the model has positions for.
        expansion: tokens behind it; None for none.
        skipped_tokens: tokens whose vectors are left out.
    """

    prompt: str = ""
    prefix: int | None = None
    max_length: int | None = None
    expansion: Expansion | None = None
    skipped_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check(self.max_length is None or self.max_length > 2, self, "max_length", "more than 2, or None")


@dataclass(frozen=True, kw_only=True)
class TokenVectorsHead(Head):
    """Vectors [B, S, D] of the tokens, of the states [B, S, E].

    Attributes:
        layers: what each state runs through.
        normalize: whether the results have L2 norm 1.
        query, document: how texts of both roles are read.
        score: of a query and a document: over the tokens of the query, of the largest product of each with a token of
            the document.
    """

    words: ClassVar[str] = "vectors of tokens"
    kind: Literal["token_vectors"] = "token_vectors"
    layers: tuple[PoolingLayer, ...]
    normalize: bool
    query: Reading = Reading()
    document: Reading = Reading()
    score: Literal["sum", "mean"] = "sum"

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the vectors of the tokens."""
        return (HeadOutput(name="token_embeddings", gives="token vectors", axes=("tokens", "numbers")),)

    @property
    def expands_unattended(self) -> bool:
        """Whether queries have tokens behind them that they do not attend to."""
        return self.query.expansion is not None and not self.query.expansion.attended

    def widths(self, hidden_size: int) -> tuple[int, ...]:
        """Return the size of a state, and that of every layer's output."""
        return (hidden_size, *(layer.size for layer in self.layers))

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of the layers."""
        widths = self.widths(sizes.hidden)
        return sum(layer.weights(width) for layer, width in zip(self.layers, widths, strict=False))

    def products(self, sizes: Sizes) -> int:
        """Return the weights of the layers without biases."""
        return self.weights(sizes) - sum(layer.size * layer.bias for layer in self.layers)
