"""A causal language model that reads pictures: a decoder, a tower, and what makes states of one of the other's."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from edgeformer.config import PictureTextConfig, RotaryConfig
from edgeformer.layers import LayerCache
from edgeformer.layers.position import TokenAngles, angles_by_axes
from edgeformer.models.decoder import Decoder
from edgeformer.models.pictures.tower_text import TowerText
from edgeformer.models.stack import Run


class PictureText(TowerText, Decoder):
    """The decoder of `PictureTextConfig`, which is the text model by itself, beside its tower and its projector."""

    def __init__(self, config: PictureTextConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.add_tower(config, dtype)

    def embed_wide(self, input_ids: Tensor) -> Tensor:
        """Return scaled embeddings of tokens, int64 [B, S], as `read_embeddings` takes them: [B, S, `wide_size`]."""
        x = self.embed_tokens(input_ids)
        more, layer_input = self.seeing.state_size - self.config.hidden_size, self.seeing.layer_input
        x = F.pad(x, (0, more)) if more else x
        if layer_input is None:
            return x
        read = torch.where(input_ids == layer_input.placeholder, layer_input.token, input_ids)
        table = self.per_layer_embedding
        return torch.cat((x, table.embedding(table.places(read))), -1)

    def read_embeddings(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        caches: Sequence[LayerCache],
        position_ids: Tensor | None = None,
        *,
        looks_back: bool = False,
    ) -> tuple[Tensor, list[LayerCache]]:
        """Return what `forward` returns, of scaled embeddings [B, S, E], or what stands in their place.

        They are [B, S, E · (1 + D)] where D states more are added behind the first blocks, zeros for tokens, and wider
        by a row of the per-layer embedding where there is one. position_ids: int64 [3, B, S], where positions have axes
        (`PictureTextConfig.axes`). Where the config has blocks that attend both ways, all of S is one, unless it looks
        back, as text does.
        """
        x, run, added = self._begin(inputs_embeds, attention_mask)
        axes, angles = self.seeing.axes, dict[RotaryConfig, TokenAngles]()
        if axes is not None:
            assert position_ids is not None
            angles = {
                each: angles_by_axes(self.rotary_table(each), position_ids, axes) for each in self.shared.rotaries
            }
        run = replace(run, bidirectional=None if looks_back else self.seeing.bidirectional, angles=angles)
        return self.run_blocks(x, run, caches, added=added)

    def _begin(self, inputs_embeds: Tensor, attention_mask: Tensor) -> tuple[Tensor, Run, Sequence[Tensor]]:
        """Return what `begin` returns, of wide embeddings, and what is added behind the first blocks."""
        config, rows = self.seeing, None
        if config.layer_input is not None:
            more = config.wide_size - config.state_size
            inputs_embeds, rows = inputs_embeds.split([config.state_size, more], -1)
        added: Sequence[Tensor] = ()
        if config.deepstack:
            inputs_embeds, *added = inputs_embeds.split(self.config.hidden_size, -1)
        return *self.begin(inputs_embeds, inputs_embeds, attention_mask, layer_rows=rows), added

    def read_blocks(
        self, inputs_embeds: Tensor, blocks: Sequence[int], caches: Sequence[LayerCache]
    ) -> tuple[Tensor, list[LayerCache]]:
        """Return what `read_embeddings` returns of a text without padding, piece by piece.

        blocks: the number of the block that each of S is in; a negative one for what is in none. Neighbours of one
        number are one block.
        """
        blocks, start, logits = list(blocks), 0, []
        while start < len(blocks):
            end = start + 1
            while end < len(blocks) and blocks[end] == blocks[start]:
                end += 1
            piece = inputs_embeds[:, start:end]
            mask = torch.ones(len(piece), end, dtype=torch.int64, device=piece.device)
            if blocks[start] < 0:
                x, run, added = self._begin(piece, mask)
                found, caches = self.run_blocks(x, run, caches, added=added)
            else:
                found, caches = self.read_embeddings(piece, mask, caches)
            logits.append(found)
            start = end
        return torch.cat(logits, 1), list(caches)
