"""Configs of the heads of encoders: what is computed from the last states."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.config.feed_forward import Activation
from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class MaskedLMHead:
    """Masked-LM head: logits [B, S, V] of norm(activation(dense(x))) times a table [V, E], and a bias [V].

    Attributes:
        activation: None without the dense layer and its norm.
        tied: the table is the embedding table; otherwise the head has its own.
    """

    kind: Literal["masked_lm"] = "masked_lm"
    activation: Activation | None
    norm: NormConfig | None
    dense_bias: bool = True
    bias: bool = True
    tied: bool = True

    def __post_init__(self) -> None:
        check(self.norm is None or self.activation is not None, self, "norm", "None without a dense layer")


ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
"""The problem_type of config.json, by its names there."""


@dataclass(frozen=True, kw_only=True)
class ClassificationHead:
    """Classification head: logits of `labels`, [B, labels], or [B, S, labels] where every token is classified.

    Attributes:
        pooling: the state that is classified is that of the `first` or `last` token or the `mean` of all; None: every
            token.
        skipped_token: with `last`, a token that is passed over at the end of a text; None for none.
        dense: activation of a dense layer before the projection, activation(dense(x)); None without that layer.
        norm: normalizes the output of the dense layer.
        problem_type: how logits are read: as those of one label among all, of labels that each apply or not, or as
            numbers. None: a single label applies or not, of several one does. It changes nothing in a graph.
        score: what a cross-encoder does with logits to score two texts. None: `sigmoid` of a single label, `identity`
            of several. It changes nothing in a graph.
        tokens: of a causal model whose next token is the answer: the logit is that of the first of these tokens, minus
            that of the second, if there are two. Then the sigmoid of the logit is the probability of the first.
        messages: how a pair of texts is laid out by the chat template, as messages of the roles query and document:
            `closed`, or `open`, with the beginning of an answer. None: as the tokenizer encodes pairs.
    """

    kind: Literal["classification"] = "classification"
    labels: tuple[str, ...]
    pooling: Literal["first", "last", "mean"] | None
    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None
    bias: bool = True
    problem_type: ProblemType | None = None
    score: Literal["identity", "sigmoid"] | None = None
    skipped_token: int | None = None
    tokens: tuple[int, ...] | None = None
    messages: Literal["closed", "open"] | None = None

    def __post_init__(self) -> None:
        check(len(self.labels) > 0, self, "labels", "at least one label")
        check(self.skipped_token is None or self.pooling == "last", self, "skipped_token", "None without `last`")
        check(self.tokens is None or len(self.tokens) in (1, 2), self, "tokens", "one token or two, or None")
        check(self.norm is None or self.dense is not None, self, "norm", "None without dense")


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringHead:
    """Logits [B, S, 2] of a question and its context: of tokens as the first, and as the last, of the answer."""

    kind: Literal["question_answering"] = "question_answering"


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


@dataclass(frozen=True, kw_only=True)
class PoolingHead:
    """Sentence embedding [B, D] of the states [B, S, E].

    Attributes:
        pooling: how states become a vector, or several ways whose vectors are concatenated in that order.
        layers: what the vector runs through.
        normalize: whether the result has L2 norm 1.
    """

    kind: Literal["pooling"] = "pooling"
    pooling: Pooling | tuple[Pooling, ...]
    layers: tuple[PoolingLayer, ...] = ()
    normalize: bool

    def __post_init__(self) -> None:
        check(len(self.poolings) > 0, self, "pooling", "at least one")

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """Return all ways of pooling."""
        return (self.pooling,) if isinstance(self.pooling, str) else self.pooling

    def widths(self, hidden_size: int) -> tuple[int, ...]:
        """Return the size of the pooled vector, and that of every layer's output; the last is the embedding's."""
        return (hidden_size * len(self.poolings), *(layer.size for layer in self.layers))


EncoderHead = MaskedLMHead | ClassificationHead | QuestionAnsweringHead | PoolingHead
