"""Config of multi-head latent attention."""

from dataclasses import dataclass

from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention (MLA): keys and values of all heads are projections of one short vector per token.

        latent = norm(down(x)),    value of a head = value(latent),    key of a head = [shared_key(x), key(latent)]

    Positions are rotated in the shared part of the keys, which comes first here; checkpoints have it last. The cache
    holds keys and values of all heads. Source: arXiv 2405.04434, section 2.1.

    Attributes:
        rank: width of the latent vector.
        shared_dim: leading elements of each key that are the same for all heads.
        value_dim: elements of each head's value; behind them, zeros fill it up to head_dim.
        norm: normalizes latent vectors.
        query_rank: queries are query(norm(query_down(x))) by a vector of this width; None where they are query(x).
        bias: the projections of x, but for that of queries without a query_rank, have biases.
        scale, query_scale: factors of the normed latent vectors (LongCat-Flash).
    """

    rank: int
    shared_dim: int
    value_dim: int
    norm: NormConfig
    query_rank: int | None
    bias: bool = False
    scale: float = 1.0
    query_scale: float = 1.0

    def __post_init__(self) -> None:
        for field in ("rank", "shared_dim", "value_dim"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(self.query_rank is None or self.query_rank > 0, self, "query_rank", "positive, or None")
        check(self.query_rank is not None or self.query_scale == 1, self, "query_scale", "1 without a query_rank")
        check(self.norm.kind != "batch_norm", self, "norm", "an rms_norm or a layer_norm")
