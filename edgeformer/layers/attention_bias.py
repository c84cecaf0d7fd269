"""Additive attention biases that blocks share: by distance (ALiBi, T5), and by which keys a query may see at all.

Each module computes [B or 1, H or 1, S, T] from the positions of the queries and the number of keys; whatever is above
the diagonal is masked by the attention op and may hold anything.
"""

import math

import torch
from torch import Tensor, nn

from edgeformer.config import AlibiConfig, AttentionConfig, RandomBlocks, T5BiasConfig


class AlibiBias(nn.Module):
    """Slope of the head · (key position − query position)."""

    slopes: Tensor

    def __init__(self, config: AlibiConfig, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("slopes", torch.empty(len(config.slopes), dtype=dtype), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        """distances int64 [B, S, T] → [B, H, S, T]."""
        return -distances.unsqueeze(1).to(self.slopes.dtype) * self.slopes[:, None, None]


class T5Bias(nn.Module):
    """The learned weight [buckets, H] of each distance's bucket."""

    buckets: Tensor

    def __init__(self, config: T5BiasConfig, num_heads: int, context_length: int, dtype: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.num_buckets, num_heads, dtype=dtype))
        self.register_buffer("buckets", torch.empty(context_length, dtype=torch.int64), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        """distances int64 [B, S, T] → [B, H, S, T]."""
        return self.weight[self.buckets[distances.clamp(min=0)]].permute(0, 3, 1, 2)


class Visibility(nn.Module):
    """0 where a query may see a key and −inf where it may not: windows with global tokens and random blocks, chunks."""

    blocks: Tensor

    def __init__(self, config: AttentionConfig, context_length: int):
        super().__init__()
        self.config = config
        if config.random_blocks is not None:
            count = math.ceil(context_length / config.random_blocks.size)
            self.register_buffer("blocks", torch.empty(count, count, dtype=torch.int64), persistent=False)

    def forward(self, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """distances int64 [B, S, T] → [B, 1, S, T]."""
        config = self.config
        columns = torch.arange(distances.shape[2], device=distances.device)
        rows = distances + columns
        if config.chunk is not None:
            seen = rows // config.chunk == columns // config.chunk
        else:
            seen = distances < (config.window or 0)
            if config.global_tokens:
                seen = seen | (columns < config.global_tokens)
            if config.random_blocks is not None:
                size = config.random_blocks.size
                seen = seen | (self.blocks[rows // size, columns // size] > 0)
        hidden = torch.zeros(seen.shape, dtype=dtype, device=distances.device).masked_fill(~seen, float("-inf"))
        return hidden.unsqueeze(1)


def t5_buckets(config: T5BiasConfig, context_length: int) -> Tensor:
    """Bucket of each distance 0 … C − 1 to an earlier key: int64 [C].

    Half of the buckets hold one distance each, the others grow logarithmically up to max_distance. In float32, as T5
    computes it: a distance at the edge of two buckets must fall on the side for which the weights were trained.
    """
    exact = config.num_buckets // 2
    distance = torch.arange(context_length)
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(config.max_distance / exact)
    far = exact + (ratio * (config.num_buckets - exact)).to(torch.int64)
    return torch.where(distance < exact, distance, far.clamp(max=config.num_buckets - 1))


def random_blocks(config: RandomBlocks, context_length: int) -> Tensor:
    """Which earlier blocks each block of tokens sees beside its window: int64 [blocks, blocks], ones and zeros."""
    count = math.ceil(context_length / config.size)
    generator = torch.Generator().manual_seed(config.seed)
    seen = torch.zeros(count, count, dtype=torch.int64)
    for row in range(1, count):
        drawn = torch.randperm(row, generator=generator)[: config.count]
        seen[row, drawn] = 1
    return seen
