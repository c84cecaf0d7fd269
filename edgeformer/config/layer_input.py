"""Configs of embeddings per layer: each block gets an input of its own for every token."""

from dataclasses import dataclass

from edgeformer.config.feed_forward import Activation
from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class PerLayerEmbedding:
    """The inputs of all blocks, [B, S, layers, size]: (norm(W · x / √E) + √size · table[token]) / √2.

    x [B, S, E] is the scaled embedding of the token. The table holds the rows of all layers, so that one gather reads
    them. Source: transformers' modeling_gemma3n.py and modeling_gemma4.py.

    Attributes:
        rows: tokens in the table. Tokens from this number on read row 0.
        size: elements of one layer's input.
    """

    rows: int
    size: int
    norm: NormConfig

    def __post_init__(self) -> None:
        check(self.rows > 0, self, "rows", "positive")
        check(self.size > 0, self, "size", "positive")


@dataclass(frozen=True, kw_only=True)
class PictureLayerInput:
    """The row of a `PerLayerEmbedding` that a decoder reads for each state of a picture: that of a token.

    Source: transformers' Gemma4Model, where it is the padding token.

    Attributes:
        placeholder: the token in the place of each state.
        token: whose row is read.
    """

    placeholder: int
    token: int

    def __post_init__(self) -> None:
        for field in ("placeholder", "token"):
            check(getattr(self, field) >= 0, self, field, "zero or positive")


@dataclass(frozen=True, kw_only=True)
class LayerInputConfig:
    """How a block uses its input i [B, S, size]: x + norm(project(activation(gate(x)) · i))."""

    size: int
    activation: Activation
    norm: NormConfig

    def __post_init__(self) -> None:
        check(self.size > 0, self, "size", "positive")
