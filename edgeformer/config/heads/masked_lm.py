"""The head that fills masks."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.feed_forward import Activation
from edgeformer.config.heads.head import Head, HeadOutput, Sizes
from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class MaskedLMHead(Head):
    """Masked-LM head: logits [B, S, V] of norm(activation(dense(x))) times a table [V, E], and a bias [V].

    Attributes:
        activation: None without the dense layer and its norm.
        tied: the table is the embedding table; otherwise the head has its own.
        own_columns: columns of the table behind those of the embedding, which the head has of its own (MobileBERT); the
            dense layer has so many outputs more. None for none.
    """

    words: ClassVar[str] = "masked-LM head"
    kind: Literal["masked_lm"] = "masked_lm"
    activation: Activation | None
    norm: NormConfig | None
    dense_bias: bool = True
    bias: bool = True
    tied: bool = True
    own_columns: int | None = None

    def __post_init__(self) -> None:
        check(self.norm is None or self.activation is not None, self, "norm", "None without a dense layer")
        more = self.own_columns is None or (self.own_columns >= 0 and self.activation is not None)
        check(more, self, "own_columns", "zero or positive where there is a dense layer, or None")

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the logits of every token."""
        return (HeadOutput(name="logits", gives="words", axes=("tokens", "vocabulary")),)

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of the dense layer, its norm, and the table, if it has its own."""
        width, table = sizes.embedding + (self.own_columns or 0), sizes.vocabulary * sizes.embedding
        table = table * (not self.tied) + sizes.vocabulary * (self.own_columns or 0)
        dense = width * (sizes.hidden + self.dense_bias) if self.activation is not None else 0
        norm = 0 if self.norm is None else self.norm.weights(width)
        return dense + norm + table + sizes.vocabulary * self.bias

    def products(self, sizes: Sizes) -> int:
        """Return the weights of the dense layer and of the table."""
        width = sizes.embedding + (self.own_columns or 0)
        return (sizes.hidden * (self.activation is not None) + sizes.vocabulary) * width
