"""Several heads over the same states, as BGE-M3 has them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.heads.head import Head, HeadOutput, Sizes
from edgeformer.config.heads.pooling import PoolingHead
from edgeformer.config.heads.token_vectors import TokenVectorsHead
from edgeformer.config.heads.token_weights import TokenWeightsHead
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class CombinedHead(Head):
    """Heads whose outputs one run of a graph gives, in order."""

    words: ClassVar[str] = "several embeddings"
    kind: Literal["combined"] = "combined"
    heads: tuple[PoolingHead | TokenWeightsHead | TokenVectorsHead, ...]

    def __post_init__(self) -> None:
        names = [output.name for output in self.outputs]
        check(
            len(self.heads) > 1 and len(set(names)) == len(names), self, "heads", "several, each with its own outputs"
        )

    @property
    def parts(self) -> tuple[Head, ...]:
        """Return the heads."""
        return self.heads

    @property
    def outputs(self) -> tuple[HeadOutput, ...]:
        """Return the outputs of all heads."""
        return tuple(output for head in self.heads for output in head.outputs)

    def weights(self, sizes: Sizes) -> int:
        """Return the number of parameters of all heads."""
        return sum(head.weights(sizes) for head in self.heads)

    def products(self, sizes: Sizes) -> int:
        """Return the weights of all heads that every token is multiplied with."""
        return sum(head.products(sizes) for head in self.heads)
