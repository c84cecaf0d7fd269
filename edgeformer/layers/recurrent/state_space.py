"""The selective state space of Mamba-2."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.config import StateSpaceConfig
from edgeformer.layers.attention.attention import Context, LayerCache
from edgeformer.layers.recurrent.parts import parts


class StateSpace(nn.Module):
    """The layer that `StateSpaceConfig` describes."""

    def __init__(self, config: StateSpaceConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.input = nn.Linear(hidden_size, config.projected_size, bias=config.input_bias, dtype=dtype)
        self.conv_weight = nn.Parameter(torch.empty(config.channels, config.kernel_size, dtype=dtype))
        self.conv_bias = nn.Parameter(torch.empty(config.channels, dtype=dtype)) if config.conv_bias else None
        self.step_bias = nn.Parameter(torch.empty(config.num_heads, dtype=dtype))
        self.decay_rate_log = nn.Parameter(torch.empty(config.num_heads, dtype=dtype))
        self.skip = nn.Parameter(torch.empty(config.num_heads, dtype=dtype))
        inner, eps = config.inner_size, config.norm_eps
        self.norm = nn.Identity() if eps is None else GroupNorm(inner, config.norm_groups, eps, dtype)
        self.output = nn.Linear(config.inner_size, hidden_size, bias=config.output_bias, dtype=dtype)

    def forward(self, x: Tensor, past: LayerCache, context: Context) -> tuple[Tensor, LayerCache]:
        """Return the output [B, S, E] for x [B, S, E], and the present states.

        past, present: the last inputs of the convolution, [B, channels, kernel_size − 1], and the state of each head,
        [B, H, state_size, head_dim].
        """
        assert context.token_mask is not None
        config = self.config
        conv, state = past
        gate, mixed, step = self._projected(x)
        mixed, present_conv = ops.causal_conv(
            mixed, self.conv_weight, self.conv_bias, conv, context.token_mask, silu=True
        )
        group_size = config.num_groups * config.state_size
        value, into, out_of = parts(mixed, config.inner_size, group_size, group_size)
        # The state is float32 at least, and so is what it is made of.
        value, into, out_of, step = (each.to(state.dtype) for each in (value, into, out_of, step))
        step = F.softplus(step + self.step_bias.to(state.dtype))
        if config.min_step or config.max_step is not None:
            step = step.clamp(config.min_step, config.max_step)
        heads = value.view(*value.shape[:-1], config.num_heads, config.head_dim)  # [B, S, H, D]
        y, present_state = ops.linear_attention(
            out_of,
            into,
            (heads * step.unsqueeze(-1)).flatten(-2),
            state,
            context.token_mask,
            -self.decay_rate_log.to(state.dtype).exp() * step,
            None,
            scale=1.0,
        )
        y = (y + (heads * self.skip.to(state.dtype).unsqueeze(-1)).flatten(-2)).to(x.dtype)
        return _scaled(self.output(self._gated(y, gate)), config.output_scale), (present_conv, present_state)

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return z, then x, B and C together, then Δ of the input [B, S, E]."""
        config = self.config
        projected = self.input(_scaled(x, config.input_scale))
        inner, group_size = config.inner_size, config.num_groups * config.state_size
        if len({*config.part_scales[1:4]}) == 1:
            gate, mixed, step = parts(projected, inner, config.channels, config.num_heads)
            mixed = _scaled(mixed, config.part_scales[1])
        else:
            gate, *mixing, step = parts(projected, inner, inner, group_size, group_size, config.num_heads)
            scaled = [_scaled(part, scale) for part, scale in zip(mixing, config.part_scales[1:4], strict=True)]
            mixed = torch.cat(scaled, -1)
        return _scaled(gate, config.part_scales[0]), mixed, _scaled(step, config.part_scales[4])

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Return norm(y · silu(gate)), or norm(y) · silu(gate)."""
        normed: Tensor = self.norm(y) * F.silu(gate) if self.config.norm_before_gate else self.norm(y * F.silu(gate))
        return normed


class GroupNorm(nn.Module):
    """RMSNorm of each of several groups of a vector by itself; see `ops.rms_norm`."""

    def __init__(self, size: int, groups: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))

    def forward(self, y: Tensor) -> Tensor:
        """Return y [B, S, size] normalized."""
        if self.groups == 1:
            normed: Tensor = ops.rms_norm(y, self.weight, self.eps)
            return normed
        groups = y.unflatten(-1, (self.groups, -1))
        return ops.rms_norm(groups, None, self.eps).flatten(-2) * self.weight


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else x * scale
