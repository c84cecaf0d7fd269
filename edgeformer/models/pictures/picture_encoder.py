"""An encoder that reads pictures: an encoder of texts, a tower, and what makes states of one of the other's."""

import torch
from torch import Tensor

from edgeformer.config import PictureEncoderConfig
from edgeformer.models.encoder import Encoder
from edgeformer.models.pictures.tower_text import TowerText


class PictureEncoder(TowerText, Encoder):
    """The encoder of `PictureEncoderConfig`, which is the text model by itself, beside its tower and its projector."""

    def __init__(self, config: PictureEncoderConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.add_tower(config, dtype)

    def embed_wide(self, input_ids: Tensor) -> Tensor:
        """Return scaled embeddings of tokens, int64 [B, S], as `read_embeddings` takes them: [B, S, E]."""
        return self.embed_tokens(input_ids)

    def read_embeddings(self, inputs_embeds: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return what `forward` returns, of embeddings [B, S, E], among which states of pictures stand."""
        states = self.final_norm(self.encode_embeddings(inputs_embeds, attention_mask))
        return self.with_head(states, inputs_embeds, attention_mask)
