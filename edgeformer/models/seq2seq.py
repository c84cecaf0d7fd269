"""An encoder and a decoder that reads it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgeformer.config import Seq2SeqConfig
from edgeformer.layers import Cache
from edgeformer.models.decoder import Decoder
from edgeformer.models.encoder import Encoder


class Seq2Seq(nn.Module):
    """Two halves that run apart: `encode` once for a source, `decode` for every run of target tokens."""

    def __init__(self, config: Seq2SeqConfig, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder, dtype)
        self.decoder = Decoder(config.decoder, dtype, source_size=config.encoder.hidden_size)
        if config.shared_embedding:
            shared = self.encoder.embedding.weight
            self.decoder.embedding.weight = shared
            if config.decoder.tied_head:
                self.decoder.head.weight = shared

    def encode(self, inputs: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, list[Cache]]:
        """The encoder's states [B, S, E], and from them keys and values for every block of the decoder [B, H, S, D].

        inputs: token ids int64 [B, S] with their attention_mask, or the spectrogram [B, mel_bins, 2·S].
        """
        states = self.encoder.encode(inputs, attention_mask)
        readable = states
        if attention_mask is not None:
            # What padding computes may overflow, and attention multiplies it with zero: 0 · inf is NaN.
            readable = states.masked_fill((attention_mask == 0).unsqueeze(-1), 0)
        return states, [block.cross_attention.project(readable) for block in self.decoder.blocks]  # type: ignore[union-attr,operator]

    def decode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        source_mask: Tensor,
        caches: Sequence[Cache],
        sources: Sequence[Cache],
    ) -> tuple[Tensor, list[Cache]]:
        """Logits [B, S, V] and the present caches; see `Decoder.forward`."""
        logits, presents = self.decoder(input_ids, attention_mask, caches, sources, source_mask)
        return logits, presents
