"""The head that classifies texts or their tokens."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.feed_forward import Activation
from edgeformer.config.heads.head import Head, HeadOutput, Sizes
from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
"""The problem_type of config.json, by its names there."""


@dataclass(frozen=True, kw_only=True)
class ClassificationHead(Head):
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

    words: ClassVar[str] = "classification head"
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

    @property
    def reads_ids(self) -> bool:
        """Whether a token is passed over."""
        return self.skipped_token is not None

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the logits of a text, or those of every token."""
        if self.pooling is None:
            return (HeadOutput(name="logits", gives="token classes", axes=("tokens", "labels")),)
        return (HeadOutput(name="logits", gives="classes", axes=("labels",)),)

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of the dense layer, its norm, and the projection."""
        dense = sizes.hidden * (sizes.hidden + self.dense_bias) if self.dense is not None else 0
        norm = 0 if self.norm is None else self.norm.weights(sizes.hidden)
        return dense + norm + len(self.labels) * (sizes.hidden + self.bias)

    def products(self, sizes: Sizes) -> int:
        """Return the weights of both layers where every token is classified."""
        return sizes.hidden * (sizes.hidden * (self.dense is not None) + len(self.labels)) * (self.pooling is None)
