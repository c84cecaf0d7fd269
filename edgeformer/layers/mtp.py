"""Multi-token prediction: the layer behind a decoder that drafts the token after the next one."""

import torch
from torch import Tensor, nn

from edgeformer.config import MTPConfig
from edgeformer.layers.attention.attention import Context, LayerCache
from edgeformer.layers.block import Block
from edgeformer.layers.norm import make_norm


class MultiTokenPrediction(nn.Module):
    """The layer that `MTPConfig` describes, between the decoder's embedding and its head.

    embeddings of the next tokens ── token_norm ──┐
                                                  ├── projection ── block ── norm ──→ states
    states of the tokens ─────────── state_norm ──┘

    Where states are not normalized, they are what the block returns, and `head_states` applies the norm.
    """

    def __init__(self, config: MTPConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.token_norm = make_norm(config.norm, hidden_size, dtype=dtype)
        self.state_norm = make_norm(config.norm, hidden_size, dtype=dtype)
        self.projection = nn.Linear(2 * hidden_size, hidden_size, bias=False, dtype=dtype)
        self.block = Block(config.block, hidden_size, dtype)
        self.norm = make_norm(config.norm, hidden_size, dtype=dtype)

    def forward(self, x: Tensor, states: Tensor, past: LayerCache, context: Context) -> tuple[Tensor, LayerCache]:
        """Return states of the tokens behind, which stand in for the model's, and the present cache.

        x: embeddings of the tokens behind those of `states`; both are [B, S, E], and so is the result.
        """
        parts = [self.token_norm(x), self.state_norm(states)]
        x = self.projection(torch.cat(parts[::-1] if self.config.hidden_first else parts, -1))
        x, present = self.block(x, past, context)
        return (self.norm(x) if self.config.normalized else x), present

    def head_states(self, states: Tensor) -> Tensor:
        """Return what the head reads of states that `forward` returned."""
        return states if self.config.normalized else self.norm(states)
