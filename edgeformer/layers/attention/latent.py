"""The projections of multi-head latent attention."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import AttentionConfig, LatentConfig
from edgeformer.layers.norm import make_norm


class LatentProjections(nn.Module):
    """Queries, keys and values by way of short vectors; see `LatentConfig`.

    x ──┬── query_down ── query_norm ── query
        ├── down ── norm ──┬── key ───(concatenated with the shared key)
        │                  └── value
        └── shared_key
    Without a `query_rank`, `query` reads x.
    """

    def __init__(self, config: AttentionConfig, latent: LatentConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config, self.num_heads, self.head_dim = latent, config.num_heads, config.head_dim
        heads, rank = config.num_heads, latent.query_rank
        if rank is not None:
            self.query_down = nn.Linear(hidden_size, rank, bias=latent.bias, dtype=dtype)
            self.query_norm = make_norm(latent.norm, rank, dtype=dtype)
        self.query = nn.Linear(rank or hidden_size, heads * config.head_dim, bias=False, dtype=dtype)
        self.down = nn.Linear(hidden_size, latent.rank, bias=latent.bias, dtype=dtype)
        self.norm = make_norm(latent.norm, latent.rank, dtype=dtype)
        self.shared_key = nn.Linear(hidden_size, latent.shared_dim, bias=latent.bias, dtype=dtype)
        self.key = nn.Linear(latent.rank, heads * (config.head_dim - latent.shared_dim), bias=False, dtype=dtype)
        self.value = nn.Linear(latent.rank, heads * latent.value_dim, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of x [B, S, E], each [B, S, H·D]."""
        config, packed = self.config, (*x.shape[:-1], self.num_heads * self.head_dim)
        query = self.query(x if config.query_rank is None else _scaled(self._short_query(x), config.query_scale))
        latent = _scaled(self.norm(self.down(x)), config.scale)
        shared = self.shared_key(x).unsqueeze(-2).expand(-1, -1, self.num_heads, -1)
        key = torch.cat((shared, self._heads(self.key(latent))), -1).reshape(packed)
        value = F.pad(self._heads(self.value(latent)), (0, self.head_dim - config.value_dim)).reshape(packed)
        return query, key, value

    def without_zeros(self, output: Tensor) -> Tensor:
        """Return attention's output [B, S, H·D] without what the zeros behind each value make: [B, S, H·value_dim]."""
        heads = self._heads(output)[..., : self.config.value_dim]
        return heads.reshape(*output.shape[:-1], self.num_heads * self.config.value_dim)

    def _short_query(self, x: Tensor) -> Tensor:
        return self.query_norm(self.query_down(x))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.num_heads, -1)


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else x * scale
