"""One block of a decoder."""

import torch
from torch import Tensor, nn

from edgeformer.config import BlockConfig
from edgeformer.layers.attention import Attention, Cache
from edgeformer.layers.feed_forward import FeedForward
from edgeformer.layers.norm import RMSNorm
from edgeformer.layers.position import RotaryTable


class Block(nn.Module):
    """Attention, then feed-forward, each normalised before and added to the residual stream."""

    def __init__(self, config: BlockConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.attention_norm = RMSNorm(config.norm, hidden_size, dtype)
        self.attention = Attention(config.attention, hidden_size, dtype)
        self.feed_forward_norm = RMSNorm(config.norm, hidden_size, dtype)
        self.feed_forward = FeedForward(config.feed_forward, hidden_size, dtype)

    def forward(
        self, x: Tensor, attention_mask: Tensor, past: Cache, positions: Tensor, rotary: RotaryTable | None
    ) -> tuple[Tensor, Cache]:
        """x [B, S, E] and the layer's past → x [B, S, E] and the layer's present; see `Attention`."""
        attended, present = self.attention(self.attention_norm(x), attention_mask, past, positions, rotary)
        x = x + attended
        return x + self.feed_forward(self.feed_forward_norm(x)), present
