"""The head that makes one vector of a text."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.feed_forward import Activation
from edgeformer.config.heads.head import Head, HeadOutput, Sizes
from edgeformer.documents.schema import check

Pooling = Literal["first", "last", "max", "mean", "mean_sqrt", "weighted_mean"]
"""How the states of a text's n tokens become one vector: one of them, the largest value of each channel, their sum over
n, their sum over the square root of n, or their mean weighted by 1, 2, …, n."""


@dataclass(frozen=True, kw_only=True)
class PoolingLayer:
    """A layer behind the pooling: activation(linear(x)), and x added to it with `residual`.

    Attributes:
        size: outputs of the linear layer. Where it is not the number of inputs, `residual` adds a projection of x.
        bias: whether the linear layer has one; the projection has none.
    """

    size: int
    activation: Activation
    bias: bool = True
    residual: bool = False

    def __post_init__(self) -> None:
        check(self.size > 0, self, "size", "positive")

    def weights(self, width: int) -> int:
        """Return the number of parameters of a layer whose input has `width` numbers."""
        return self.size * (width * (1 + (self.residual and width != self.size)) + self.bias)


@dataclass(frozen=True, kw_only=True)
class PoolingHead(Head):
    """Sentence embedding [B, D] of the states [B, S, E].

    Attributes:
        pooling: how states become a vector, or several ways whose vectors are concatenated in that order.
        layers: what the vector runs through.
        normalize: whether the result has L2 norm 1.
        skips_prompt: True where tokens of the prompt before a text are read and not pooled; their ids are given as
            −1 − id. None elsewhere.
        dimensions: how many of its first numbers are kept, behind everything else, of models that were trained so
            (arXiv 2205.13147, Matryoshka); None for all.
    """

    words: ClassVar[str] = "sentence embedding"
    kind: Literal["pooling"] = "pooling"
    pooling: Pooling | tuple[Pooling, ...]
    layers: tuple[PoolingLayer, ...] = ()
    normalize: bool
    skips_prompt: Literal[True] | None = None
    dimensions: int | None = None

    def __post_init__(self) -> None:
        check(len(self.poolings) > 0, self, "pooling", "at least one")
        check(self.dimensions is None or self.dimensions > 0, self, "dimensions", "positive, or None")

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """Return all ways of pooling."""
        return (self.pooling,) if isinstance(self.pooling, str) else self.pooling

    def widths(self, hidden_size: int) -> tuple[int, ...]:
        """Return the size of the pooled vector, and that of every layer's output."""
        return (hidden_size * len(self.poolings), *(layer.size for layer in self.layers))

    def size(self, hidden_size: int) -> int:
        """Return the number of numbers of an embedding."""
        last = self.widths(hidden_size)[-1]
        return last if self.dimensions is None else min(last, self.dimensions)

    @property
    def reads_ids(self) -> bool:
        """Whether ids say what is not pooled."""
        return self.skips_prompt is True

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the vector of a text."""
        return (HeadOutput(name="sentence_embedding", gives="vector", axes=("numbers",)),)

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of the layers."""
        widths = self.widths(sizes.hidden)
        return sum(layer.weights(width) for layer, width in zip(self.layers, widths, strict=False))
