"""Gated DeltaNet, the linear attention of Qwen3-Next and Qwen3.5."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.config import DeltaNetConfig, NormConfig
from edgeformer.layers.attention.attention import Context, LayerCache
from edgeformer.layers.norm import make_norm
from edgeformer.layers.recurrent.parts import parts


class DeltaNet(nn.Module):
    """The layer that `DeltaNetConfig` describes."""

    def __init__(self, config: DeltaNetConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        heads, width = config.num_value_heads, config.inner_size
        self.query_key_value = nn.Linear(hidden_size, config.channels, bias=False, dtype=dtype)
        self.gate = nn.Linear(hidden_size, width, bias=False, dtype=dtype)
        self.beta = nn.Linear(hidden_size, heads, bias=False, dtype=dtype)
        self.decay = nn.Linear(hidden_size, heads, bias=False, dtype=dtype)
        self.conv_weight = nn.Parameter(torch.empty(config.channels, config.kernel_size, dtype=dtype))
        self.step_bias = nn.Parameter(torch.empty(heads, dtype=dtype))
        self.decay_rate_log = nn.Parameter(torch.empty(heads, dtype=dtype))
        self.norm = make_norm(NormConfig(eps=config.norm_eps), config.value_dim, dtype=dtype)
        self.output = nn.Linear(width, hidden_size, bias=False, dtype=dtype)

    def forward(self, x: Tensor, past: LayerCache, context: Context) -> tuple[Tensor, LayerCache]:
        """Return the output [B, S, E] for x [B, S, E], and the present states.

        past, present: the last inputs of the convolution, [B, channels, kernel_size − 1], and the state of each head,
        [B, H, Dk, Dv].
        """
        assert context.token_mask is not None
        config = self.config
        conv, state = past
        projected = self.query_key_value(x)
        mixed, present_conv = ops.causal_conv(projected, self.conv_weight, None, conv, context.token_mask, silu=True)
        # The state is float32 at least, and so is what it is made of.
        wide = state.dtype
        query, key, value = parts(mixed.to(wide), config.key_size, config.key_size, config.inner_size)
        step = F.softplus(self.decay(x).to(wide) + self.step_bias.to(wide))
        root = config.key_dim**0.5  # a vector of length one has a root mean square of 1 / root
        attended, present_state = ops.linear_attention(
            self._normed(query),
            self._normed(key) / root,
            value,
            state,
            context.token_mask,
            -self.decay_rate_log.to(wide).exp() * step,
            torch.sigmoid(self.beta(x).to(wide)),
            scale=1 / config.key_dim,  # of the length, and of the scores
        )
        attended = attended.to(x.dtype)
        normed = self.norm(attended.unflatten(-1, (config.num_value_heads, config.value_dim))).flatten(-2)
        return self.output(normed * F.silu(self.gate(x))), (present_conv, present_state)

    def _normed(self, x: Tensor) -> Tensor:
        """Scale every head of x [B, S, G·D] to a root mean square of one."""
        config = self.config
        heads = x.unflatten(-1, (config.num_key_heads, config.key_dim))
        return ops.rms_norm(heads, None, config.length_eps / config.key_dim).flatten(-2)
