"""Dual encoder: an encoder of texts, a tower of pictures, and the similarity of their vectors."""

import torch
from torch import Tensor, nn

from edgeformer.config import DualEncoderConfig
from edgeformer.models.encoder import Encoder
from edgeformer.models.heads import normalized
from edgeformer.models.pictures.towers import build_tower


class DualEncoder(nn.Module):
    """Both halves, each of which also runs alone, and their similarity; see `DualEncoderConfig`."""

    def __init__(self, config: DualEncoderConfig, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        self.text = Encoder(config.text, dtype)
        self.vision = build_tower(config.vision, dtype)
        self.similarity = ScaledCosine(config.biased, dtype)

    def forward(self, input_ids: Tensor, *pictures: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return similarities [P, T], the same [T, P], and vectors of length one: of texts [T, D], of pictures [P, D].

        input_ids: int64 [T, S]. pictures: what the tower reads of P of them.
        """
        texts, seen = normalized(self.encode_texts(input_ids)[-1]), normalized(self.vision(*pictures)[-1])
        by_text = self.similarity(texts, seen)
        return by_text.t(), by_text, texts, seen

    def encode_texts(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        """Return the last states [T, S, E] and the vectors [T, D] of texts, int64 [T, S], all of whose tokens count.

        In a causal half, no token sees the padding behind it; in the other, padding counts.
        """
        return self.text.read(input_ids, torch.ones_like(input_ids))


class ScaledCosine(nn.Module):
    """exp(scale) · cosine + bias of texts and pictures."""

    def __init__(self, biased: bool, dtype: torch.dtype):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(1, dtype=dtype)) if biased else None

    def forward(self, texts: Tensor, pictures: Tensor) -> Tensor:
        """Return the similarities [T, P] of vectors of length one, [T, D] and [P, D]."""
        scaled = texts @ pictures.t() * self.scale.exp()
        return scaled if self.bias is None else scaled + self.bias
