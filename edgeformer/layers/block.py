"""The block of decoders and encoders."""

import torch
from torch import Tensor, nn

from edgeformer.config import (
    BlockConfig,
    DeltaNetConfig,
    ExpertsConfig,
    RecurrentConfig,
    ShortConvConfig,
    StateSpaceConfig,
)
from edgeformer.layers.attention.attention import Attention, Cache, Context, CrossAttention, LayerCache
from edgeformer.layers.experts import Experts
from edgeformer.layers.feed_forward import FeedForward
from edgeformer.layers.layer_input import LayerInput
from edgeformer.layers.norm import make_norm
from edgeformer.layers.recurrent.delta_net import DeltaNet
from edgeformer.layers.recurrent.short_conv import ShortConv
from edgeformer.layers.recurrent.state_space import StateSpace
from edgeformer.layers.residual import AltUp, Laurel, Scale

RECURRENT_LAYERS: dict[type[RecurrentConfig], type[nn.Module]] = {
    ShortConvConfig: ShortConv,
    DeltaNetConfig: DeltaNet,
    StateSpaceConfig: StateSpace,
}


class Block(nn.Module):
    """One block: attention and feed-forward are branches that are added to the residual stream.

    x ──┬── attention_norm ── attention ── attention_output_norm ──(+)── …the same with cross_attention, feed_forward
        └──────────────────────────────────────────────────────────┘
    `BlockConfig.norm_placement` decides which norms there are; an absent one is the identity. With placement `post`,
    attention_norm follows the sum.
    """

    def __init__(self, config: BlockConfig, hidden_size: int, dtype: torch.dtype, source_size: int = 0):
        super().__init__()
        self.config = config
        before = config.norm if config.norm_placement != "output" else None
        after = config.norm if config.norm_placement in ("output", "sandwich") else None
        normed = config.residual == "parallel_one_norm" or config.branch_norms
        second = None if normed else before
        self.attention_norm = make_norm(before if config.attention_norm else None, hidden_size, dtype=dtype)
        if config.attention is not None:
            self.attention = Attention(config.attention, hidden_size, dtype)
        if config.recurrent is not None:
            self.recurrent = RECURRENT_LAYERS[type(config.recurrent)](config.recurrent, hidden_size, dtype)
        self.attention_output_norm = make_norm(after, hidden_size, dtype=dtype)
        if config.cross_attention is not None:
            self.cross_attention_norm = make_norm(before, hidden_size, dtype=dtype)
            self.cross_attention = CrossAttention(config.cross_attention, hidden_size, source_size, dtype)
            self.cross_attention_output_norm = make_norm(after, hidden_size, dtype=dtype)
        if config.feed_forward is not None:
            self.feed_forward_norm = make_norm(second, hidden_size, dtype=dtype)
            network = Experts if isinstance(config.feed_forward, ExpertsConfig) else FeedForward
            self.feed_forward = network(config.feed_forward, hidden_size, dtype)  # type: ignore[arg-type]
            self.feed_forward_output_norm = make_norm(after, hidden_size, dtype=dtype)

        if config.laurel_rank is not None:
            self.laurel = Laurel(config.laurel_rank, config.norm, hidden_size, dtype)
        if config.layer_input is not None:
            self.layer_input = LayerInput(config.layer_input, hidden_size, dtype)
        if config.output_scale:
            self.output_scale = Scale(1, dtype)
        if config.layer_scale:
            self.attention_scale = Scale(hidden_size, dtype)
            if config.feed_forward is not None:
                self.feed_forward_scale = Scale(hidden_size, dtype)
        if config.altup is not None:
            self.altup = AltUp(config.altup, config.norm, hidden_size, dtype)

    def forward(
        self, x: Tensor, past: LayerCache, context: Context, encoder_cache: Cache | None = None
    ) -> tuple[Tensor, LayerCache]:
        """Return the output and the present cache.

        Args:
            x: [B, S, E], or the residual streams [B, S, N, E] of AltUp; so is the output.
            past: what the block keeps, in the order of `BlockConfig.states`; () where nothing precedes x.
            context: masks, positions and shared tables.
            encoder_cache: key and value of the encoder's states, each [B, H, source, D]; None without cross-attention.
        """
        if self.config.altup is not None:
            predicted = self.altup.predict(x)
            computed, present = self._branches(predicted[:, :, self.config.altup.active], past, context)
            x = self.altup.correct(predicted, computed)
            added = self.layer_input(self.altup.active(x), context.layer_input).unsqueeze(2)
            return torch.cat((x[:, :, :1], x[:, :, 1:] + added), 2), present
        x, present = self._branches(x, past, context, encoder_cache)
        if self.config.layer_input is not None:
            x = x + self.layer_input(x, context.layer_input)
        return (self.output_scale(x) if self.config.output_scale else x), present

    def _branches(
        self, x: Tensor, past: LayerCache, context: Context, encoder_cache: Cache | None = None
    ) -> tuple[Tensor, LayerCache]:
        """Return x [B, S, E] with the branches added, and the present cache."""
        config = self.config
        if config.norm_placement == "post":
            mixed, present = self._mix(x, past, context)
            x = self.attention_norm(x + self._scaled(mixed))
            if encoder_cache is not None:
                x = self.cross_attention_norm(
                    x + self._scaled(self.cross_attention(x, encoder_cache, context.source_mask))
                )
            if config.feed_forward is None:
                return x, present
            return self.feed_forward_norm(x + self._scaled(self.feed_forward(x))), present
        normed = self.attention_norm(x)
        mixed, present = self._mix(normed, past, context)
        mixed = self._scaled(self.attention_output_norm(mixed))
        if config.layer_scale:
            mixed = self.attention_scale(mixed)
        if config.residual == "serial":
            x = x + mixed
            if config.laurel_rank is not None:
                x = (x + self.laurel(normed)) * 0.5**0.5
            if encoder_cache is not None:
                x = x + self._scaled(self._cross_attention(x, encoder_cache, context))
            if config.feed_forward is None:
                return x, present
            return x + self._scaled(self._feed_forward(self.feed_forward_norm(x))), present
        second = normed if config.residual == "parallel_one_norm" else self.feed_forward_norm(x)
        return x + mixed + self._scaled(self._feed_forward(second)), present

    def _mix(self, x: Tensor, past: LayerCache, context: Context) -> tuple[Tensor, LayerCache]:
        """Return what self-attention and the recurrent layer make of x, [B, S, E], and their present cache."""
        if self.config.recurrent is None:
            attended, present = self.attention(x, past, context)
            return attended, present
        if self.config.attention is None:
            mixed, present = self.recurrent(x, past, context)
            return mixed, present
        attended, kept = self.attention(x, past[:2], context)
        mixed, states = self.recurrent(x, past[2:], context)
        return attended + mixed, (*kept, *states)

    def _cross_attention(self, x: Tensor, encoder_cache: Cache, context: Context) -> Tensor:
        attended = self.cross_attention(self.cross_attention_norm(x), encoder_cache, context.source_mask)
        return self.cross_attention_output_norm(attended)

    def _feed_forward(self, x: Tensor) -> Tensor:
        output = self.feed_forward_output_norm(self.feed_forward(x))
        return self.feed_forward_scale(output) if self.config.layer_scale else output

    def _scaled(self, branch: Tensor) -> Tensor:
        scale = self.config.residual_scale
        return branch if scale == 1 else branch * scale
