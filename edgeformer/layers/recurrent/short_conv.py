"""The gated short convolution of LFM2."""

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import ShortConvConfig
from edgeformer.layers.attention.attention import Context, LayerCache
from edgeformer.layers.recurrent.parts import parts


class ShortConv(nn.Module):
    """Projections around `ops.causal_conv`; see `ShortConvConfig`."""

    def __init__(self, config: ShortConvConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        channels, bias = config.channels, config.bias
        self.channels = channels
        self.input = nn.Linear(hidden_size, 3 * channels, bias=bias, dtype=dtype)
        self.conv_weight = nn.Parameter(torch.empty(channels, config.kernel_size, dtype=dtype))
        self.conv_bias = nn.Parameter(torch.empty(channels, dtype=dtype)) if bias else None
        self.output = nn.Linear(channels, hidden_size, bias=bias, dtype=dtype)

    def forward(self, x: Tensor, past: LayerCache, context: Context) -> tuple[Tensor, LayerCache]:
        """Return the output [B, S, E] for x [B, S, E], and the present state.

        past, present: the last inputs of the convolution, [B, channels, kernel_size − 1].
        """
        assert context.token_mask is not None
        before, after, value = parts(self.input(x), *[self.channels] * 3)
        gated = before * value
        mixed, present = ops.causal_conv(gated, self.conv_weight, self.conv_bias, *past, context.token_mask, False)
        return self.output(after * mixed), (present,)
