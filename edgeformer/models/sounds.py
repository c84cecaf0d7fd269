"""Towers of sound: Whisper's encoder, whose states a decoder reads in the place of embeddings."""

from collections.abc import Sequence

import torch
from torch import Tensor

from edgeformer.config import SoundTowerConfig
from edgeformer.models.encoder import Encoder


class SoundTower(Encoder):
    """An encoder of windows of a spectrogram; see `SoundTowerConfig`."""

    def __init__(self, config: SoundTowerConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.tower = config

    def states_after(self, features: Tensor, *mask: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Return the states [N, P, E] after the last block, for each of `layers`, which are all that one.

        features: [N, mel_bins, frames], in any float type. mask: int64 [N, frames] of ones, then zeros, where the
        config is masked; states of zeros are not defined.
        """
        assert set(layers) == {len(self.blocks)}, "families read no other layer of a tower of sound"
        attended = []
        if mask:
            positions = (mask[0].sum(1, keepdim=True) + 1) // 2
            attended = [(torch.arange(self.tower.context_length, device=features.device) < positions).to(torch.int64)]
        x = self.encode_blocks(features.to(self.stem.first.weight.dtype), *attended)
        if self.tower.pool is not None:
            x = x.unflatten(1, (-1, self.tower.pool)).mean(2)
        return [self.final_norm(x)] * len(layers)

    def without_prefix(self, states: Tensor) -> Tensor:
        """Return the states: none is of a learned token."""
        return states
