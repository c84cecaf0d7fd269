"""Encoder-decoder: an encoder, and a decoder with cross-attention to its states."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.config import Seq2SeqConfig
from edgeformer.layers import Cache
from edgeformer.models.decoder import Decoder
from edgeformer.models.encoder import Encoder
from edgeformer.models.pictures.vision import VisionEncoder

ENCODERS: dict[str, Callable[[Any, torch.dtype], Encoder | VisionEncoder]] = {
    "encoder": Encoder, "vision": VisionEncoder,
}  # fmt: skip
"""Encoders by the kind of their configs: of texts and spectrograms, and of pictures."""


class Seq2Seq(nn.Module):
    """An encoder-decoder in two parts: `encode` runs once per source, `decode` once per run of target tokens."""

    def __init__(self, config: Seq2SeqConfig, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        self.encoder: Encoder | VisionEncoder = ENCODERS[config.encoder.kind](config.encoder, dtype)
        self.decoder = Decoder(config.decoder, dtype, source_size=config.encoder.hidden_size)
        if config.shared_embedding:
            shared = self.encoder.embedding.weight
            self.decoder.embedding.weight = shared
            if config.decoder.tied_head:
                self.decoder.head.weight = shared

    def encode(self, inputs: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, list[Cache]]:
        """Return the encoder's states [B, S, E] and, per block of the decoder, key and value, each [B, H, S, D].

        Args:
            inputs: token ids int64 [B, S], a log-mel spectrogram [B, mel_bins, 2·S], or pictures [B, channels, height,
                width].
            attention_mask: int64 [B, S] with 0 for padding; None for spectrograms and pictures.
        """
        masks = [] if attention_mask is None else [attention_mask]
        states = self.encoder.encode(inputs, *masks)
        readable = states
        if attention_mask is not None:
            # States of padding may overflow, and attention multiplies their values with zero: 0 · inf is NaN.
            readable = states.masked_fill((attention_mask == 0).unsqueeze(-1), 0)
        return states, [block.cross_attention.project(readable) for block in self.decoder.blocks]  # type: ignore[union-attr,operator]

    def decode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        source_mask: Tensor,
        caches: Sequence[Cache],
        encoder_caches: Sequence[Cache],
    ) -> tuple[Tensor, list[Cache]]:
        """Return logits [B, S, V] and the present caches; see `Decoder.forward`."""
        logits, presents = self.decoder(input_ids, attention_mask, caches, encoder_caches, source_mask)
        return logits, presents
