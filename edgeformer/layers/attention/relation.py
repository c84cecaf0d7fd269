"""Tables of relations for disentangled attention: a vector per distance. Blocks share a table, and project it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgeformer.config import DisentangledConfig
from edgeformer.layers.norm import make_norm


@dataclass(frozen=True)
class Relations:
    """The relations of one forward pass.

    Attributes:
        table: vectors of the relations, [1, 2·span, E].
        rows: the row of query i and key j, int64 [B or 1, S, T].
    """

    table: Tensor
    rows: Tensor


class RelationTable(nn.Module):
    """The table that `DisentangledConfig` describes, and the row of each distance."""

    rows: Tensor

    def __init__(self, config: DisentangledConfig, hidden_size: int, context_length: int, dtype: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2 * config.span, hidden_size, dtype=dtype))
        self.norm = make_norm(config.norm, hidden_size, dtype=dtype)
        self.first = 1 - context_length
        self.register_buffer("rows", torch.empty(2 * context_length - 1, dtype=torch.int64), persistent=False)

    def forward(self, distances: Tensor) -> Relations:
        """Return the relations of distances int64 [B or 1, S, T] (query position − key position)."""
        rows = self.rows.index_select(0, (distances - self.first).flatten()).view(distances.shape)
        # With a batch of one, its projections are products as those of other states, which every pass knows.
        return Relations(self.norm(self.weight.unsqueeze(0)), rows)


def relation_rows(config: DisentangledConfig, context_length: int) -> Tensor:
    """Return the row of each distance (query position − key position) from 1 − C to C − 1: int64 [2C − 1].

    With a max_distance, distances up to span / 2 have a row each, and the others share logarithmic rows. Source:
    `make_log_bucket_position` of transformers' modeling_deberta_v2.py. As there, logarithms are float32, so that a
    distance at the edge of two rows has the one for which the weights were trained.
    """
    distances = torch.arange(1 - context_length, context_length)
    if config.max_distance is not None:
        exact = config.span // 2
        far = torch.log(distances.abs().clamp(min=exact) / exact) / torch.log(
            torch.tensor((config.max_distance - 1) / exact)
        )
        steps = torch.ceil(far * (exact - 1)).to(torch.int64) + exact
        distances = torch.where(distances.abs() <= exact, distances, steps * distances.sign())
    return (distances + config.span).clamp(0, 2 * config.span - 1)
