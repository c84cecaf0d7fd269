"""The head that makes a sparse vector of a text, with a number for every token of the vocabulary (SPLADE)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.heads.head import Head, HeadOutput, Sizes
from edgeformer.config.heads.masked_lm import MaskedLMHead


@dataclass(frozen=True, kw_only=True)
class SpladeHead(Head):
    """Sparse vector [B, V]: log(1 + relu(l)) of the masked-LM logits l [B, S, V], over the tokens of a text.

    Source: arXiv 2109.10086; sentence_transformers/sparse_encoder/modules/splade_pooling.py.

    Attributes:
        masked_lm: the head of the logits.
        pooling: the largest number of all tokens, or their sum.
        twice: whether the logarithm is taken twice (arXiv 2504.14839).
    """

    words: ClassVar[str] = "sparse embedding"
    kind: Literal["splade"] = "splade"
    masked_lm: MaskedLMHead
    pooling: Literal["max", "sum"]
    twice: bool = False

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the sparse vector, and the logits that it is made of."""
        sparse = HeadOutput(name="sparse_embedding", gives="sparse vector", axes=("vocabulary",))
        return (sparse, *self.masked_lm.outputs)

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of the masked-LM head."""
        return self.masked_lm.weights(sizes)

    def products(self, sizes: Sizes) -> int:
        """Return the weights of the masked-LM head."""
        return self.masked_lm.products(sizes)
