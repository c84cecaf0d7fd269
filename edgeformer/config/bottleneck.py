"""Config of the bottleneck of a block: what makes it thinner than the states that it reads and returns."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class BottleneckConfig:
    """A thin block between wide states x (MobileBERT, arXiv 2004.02984).

    With the norms n of the block, each with weights of its own, its attention and its networks f:

        r = n(inwards(x));  y = n(r + attention);  y = n(y + f(y)) for each network;  output = n(x + outwards(y))

    Attributes:
        size: width of r and y.
        attention: what attention reads: `residual`: r; `shared`: queries and keys read another n(inwards(x)), and
            values x itself.
        feed_forwards: the number of networks, each with weights of its own.
    """

    size: int
    attention: Literal["residual", "shared"]
    feed_forwards: int

    def __post_init__(self) -> None:
        check(self.size > 0, self, "size", "positive")
        check(self.feed_forwards > 0, self, "feed_forwards", "positive")
