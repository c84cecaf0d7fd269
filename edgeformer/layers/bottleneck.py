"""The thin block that `BottleneckConfig` describes."""

import torch
from torch import Tensor, nn

from edgeformer.config import BlockConfig, FeedForwardConfig
from edgeformer.layers.attention.attention import Attention, Cache, Context, LayerCache
from edgeformer.layers.feed_forward import FeedForward
from edgeformer.layers.norm import make_norm


class BottleneckBlock(nn.Module):
    """A block whose attention and feed-forward networks are thinner than the states around it."""

    def __init__(self, config: BlockConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        assert config.bottleneck is not None and config.attention is not None
        self.config, size = config, config.bottleneck.size
        self.shared = config.bottleneck.attention == "shared"
        self.inwards = nn.Linear(hidden_size, size, dtype=dtype)
        self.inwards_norm = make_norm(config.norm, size, dtype=dtype)
        if self.shared:
            self.shared_inwards = nn.Linear(hidden_size, size, dtype=dtype)
            self.shared_norm = make_norm(config.norm, size, dtype=dtype)
        self.attention = Attention(config.attention, size, dtype, value_size=hidden_size if self.shared else size)
        self.attention_norm = make_norm(config.norm, size, dtype=dtype)
        earlier = config.bottleneck.feed_forwards - 1
        self.networks = nn.ModuleList(InnerNetwork(config, size, dtype) for _ in range(earlier))
        self.last_network = InnerNetwork(config, size, dtype)
        self.outwards = nn.Linear(size, hidden_size, dtype=dtype)
        self.outwards_norm = make_norm(config.norm, hidden_size, dtype=dtype)

    def forward(
        self, x: Tensor, past: LayerCache, context: Context, encoder_cache: Cache | None = None
    ) -> tuple[Tensor, LayerCache]:
        """Return the output [B, S, E] for x [B, S, E], and the present cache; the arguments are those of `Block`."""
        assert encoder_cache is None
        inner = self.inwards_norm(self.inwards(x))  # [B, S, size]
        if self.shared:
            attended, present = self.attention(self.shared_norm(self.shared_inwards(x)), past, context, values=x)
        else:
            attended, present = self.attention(inner, past, context)
        inner = self.attention_norm(inner + attended)
        for network in self.networks:
            inner = network(inner)
        return self.outwards_norm(x + self.outwards(self.last_network(inner))), present


class InnerNetwork(nn.Module):
    """One of the networks of a thin block, with the norm behind the sum of its output and its input."""

    def __init__(self, config: BlockConfig, size: int, dtype: torch.dtype):
        super().__init__()
        assert isinstance(config.feed_forward, FeedForwardConfig)
        self.feed_forward = FeedForward(config.feed_forward, size, dtype)
        self.norm = make_norm(config.norm, size, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [B, S, size] for x [B, S, size]."""
        normed: Tensor = self.norm(x + self.feed_forward(x))
        return normed
