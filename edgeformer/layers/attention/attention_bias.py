"""Additive attention biases that blocks share: biases by distance (ALiBi, T5), and visibility patterns.

Each module computes [B or 1, H or 1, S, T] from the positions of queries and keys. In causal attention, the attention
op masks what is above the diagonal, so that those elements may have any value.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import AlibiConfig, AttentionConfig, RandomBlocks, T5BiasConfig


class AlibiBias(nn.Module):
    """ALiBi: slope of the head · (key position − query position), or · −|distance| in bidirectional attention."""

    slopes: Tensor

    def __init__(self, config: AlibiConfig, dtype: torch.dtype, causal: bool = True):
        super().__init__()
        self.causal = causal
        self.register_buffer("slopes", torch.empty(len(config.slopes), dtype=dtype), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        """Return biases [B, H, S, T] of distances int64 [B, S, T] (query position − key position)."""
        far = distances if self.causal else distances.abs()
        return -far.unsqueeze(1).to(self.slopes.dtype) * self.slopes[:, None, None]


class T5Bias(nn.Module):
    """T5's bias: gathers the learned weight [buckets, H] of each distance's bucket; see `t5_buckets`."""

    buckets: Tensor

    def __init__(self, config: T5BiasConfig, num_heads: int, context_length: int, dtype: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.num_buckets, num_heads, dtype=dtype))
        self.first = 1 - context_length if config.bidirectional else 0
        self.register_buffer("buckets", torch.empty(context_length - self.first, dtype=torch.int64), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        """Return biases [B, H, S, T] of distances int64 [B, S, T] (query position − key position)."""
        rows = distances - self.first if self.first else distances.clamp(min=0)
        buckets = _gather(self.buckets, rows)
        return F.embedding(buckets, self.weight).permute(0, 3, 1, 2)


class Visibility(nn.Module):
    """Visibility pattern: 0 where a query sees a key, −inf elsewhere; see window, chunk … of `AttentionConfig`.

    Bidirectional attention has half of the dtype's lowest number instead of −inf, whose softmax weight is zero, too.
    """

    group: Tensor
    blocks: Tensor

    def __init__(self, config: AttentionConfig, context_length: int):
        super().__init__()
        self.config = config
        size = group_size(config)
        if size is not None:
            # A table, because an integer division is a dozen nodes in the graph.
            self.register_buffer("group", torch.empty(context_length, dtype=torch.int64), persistent=False)
        if config.random_blocks is not None:
            count = math.ceil(context_length / config.random_blocks.size)
            self.register_buffer("blocks", torch.empty(count, count, dtype=torch.int64), persistent=False)

    def forward(self, positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return [B, 1, S, T] from the positions of queries, int64 [B, S], and keys, int64 [B, T]; B may be 1."""
        config, rows, columns = self.config, positions.unsqueeze(-1), key_positions.unsqueeze(1)  # [B, S, 1], [B, 1, T]
        distances = rows - columns if config.causal else (rows - columns).abs()
        if config.chunk is not None:
            seen = _gather(self.group, rows) == _gather(self.group, columns)
        else:
            seen = distances < (config.window or 0)
            if config.global_tokens:
                seen = seen | (columns < config.global_tokens)
                if not config.causal:
                    seen = seen | (rows < config.global_tokens)
            if config.random_blocks is not None:
                of_query = F.embedding(_gather(self.group, positions), self.blocks)  # [B, S, blocks]
                of_key = _gather(self.group, columns).expand(-1, positions.shape[1], -1)  # [B, S, T]
                seen = seen | (of_query.gather(2, of_key) > 0)
        # Padding may have no visible key in its window: with −inf everywhere, the softmax of its row would be NaN.
        lowest = float("-inf") if config.causal else torch.finfo(dtype).min / 2
        hidden = torch.zeros(seen.shape, dtype=dtype, device=positions.device).masked_fill(~seen, lowest)
        return hidden.unsqueeze(1)


def _gather(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index]; the graph has one Gather for it."""
    return table.index_select(0, index.flatten()).view(index.shape)


def group_size(config: AttentionConfig) -> int | None:
    """Return the number of tokens in a random block or a chunk; None without these."""
    return config.random_blocks.size if config.random_blocks is not None else config.chunk


def group_table(size: int, context_length: int) -> Tensor:
    """Return the chunk or block of each position: int64 [C]."""
    return torch.arange(context_length) // size


def t5_buckets(config: T5BiasConfig, context_length: int) -> Tensor:
    """Return the bucket of each distance (query position − key position).

    The result is int64 [C] for the distances 0 … C − 1, or int64 [2C − 1] for 1 − C … C − 1 if bidirectional. Half of
    the buckets of a direction hold one distance each, the others grow logarithmically up to max_distance. Source:
    `_relative_position_bucket` of transformers' modeling_t5.py. As there, logarithms are float32, so that a distance
    at the edge of two buckets falls into the one for which the weights were trained.
    """
    if not config.bidirectional:
        return _one_way(config.num_buckets, config.max_distance, torch.arange(context_length))
    half = config.num_buckets // 2
    buckets = _one_way(half, config.max_distance, torch.arange(context_length))
    return torch.cat((half + buckets.flip(0)[:-1], buckets))


def _one_way(count: int, max_distance: int, distance: Tensor) -> Tensor:
    exact = count // 2
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (count - exact)).to(torch.int64)
    return torch.where(distance < exact, distance, far.clamp(max=count - 1))


def random_blocks(config: RandomBlocks, context_length: int) -> Tensor:
    """Return int64 [blocks, blocks] with 1 where the block of the row sees the block of the column."""
    count = math.ceil(context_length / config.size)
    generator = torch.Generator().manual_seed(config.seed)
    seen = torch.zeros(count, count, dtype=torch.int64)
    for row in range(1, count):
        drawn = torch.randperm(row, generator=generator)[: config.count]
        seen[row, drawn] = 1
    return seen
