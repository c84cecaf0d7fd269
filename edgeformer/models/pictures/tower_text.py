"""The tower of a model that reads pictures or sound between tokens, and the projector behind it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.config import TowerTextConfig
from edgeformer.models.pictures.grid_vision import GridVisionEncoder
from edgeformer.models.pictures.projectors import PROJECTORS
from edgeformer.models.pictures.vision import VisionEncoder
from edgeformer.models.sounds import SoundTower

TOWERS: dict[str, Callable[[Any, torch.dtype], Any]] = {
    "grid_vision": GridVisionEncoder, "sound_tower": SoundTower, "vision": VisionEncoder,
}  # fmt: skip
"""The modules of towers, by the kind of their config."""


class TowerText(nn.Module):
    """The base of modules with a tower beside their text model, which is the other base."""

    seeing: TowerTextConfig

    def add_tower(self, config: TowerTextConfig, dtype: torch.dtype) -> None:
        """Make the tower and the projector."""
        self.seeing = config
        self.tower = TOWERS[config.tower.kind](config.tower, dtype)
        projector = PROJECTORS[config.projector.kind]
        self.projector = projector(config.projector, config, dtype)
        if config.deepstack:
            mergers = (projector(config.projector, config, dtype, together=True) for _ in config.deepstack)
            self.deepstack = nn.ModuleList(mergers)
        if config.newline:
            self.newline = Newline(config.hidden_size, dtype)

    def with_pictures(self, embeddings: Tensor, seen: Tensor, features: Tensor) -> Tensor:
        """Return embeddings [B, S, `wide_size`] in which states [N, `state_size`] stand where `seen` [B, S] is true."""
        size = features.shape[-1]
        placed = embeddings[..., :size].masked_scatter(seen.unsqueeze(-1), features.to(embeddings.dtype))
        return torch.cat((placed, embeddings[..., size:]), -1)

    def see(self, pixel_values: Tensor, *grid: Tensor) -> Tensor:
        """Return what stands in the place of embeddings for pictures: states [N, tokens, E] of each.

        pixel_values: [N, channels, height, width], or [B, pictures, channels, height, width] where the graph has such
        an axis (`TowerTextConfig.tiled`); in any float type. Where pictures have any size, it is the patches of one,
        [P, numbers], and grid its rows and columns, [[1, rows, columns]]; the states are [1, tokens, E · (1 + D)], with
        those that are added behind the first D blocks. Of a tower of sound it is windows of a spectrogram, and grid
        what else the tower reads (`SoundTowerConfig.masked`).
        """
        config = self.seeing
        if config.tiled:
            pixel_values = pixel_values.flatten(0, 1)
        states = self.tower.states_after(
            pixel_values, *grid, layers=(*config.feature_layers, *(config.deepstack or ()))
        )
        if not config.keeps_prefix:
            states = [self.tower.without_prefix(each) for each in states]
        read = states[: len(config.feature_layers)]
        features: Tensor = self.projector(torch.cat(read, -1) if len(read) > 1 else read[0])
        if config.newline:
            features = self.newline(features)
        mergers = self.deepstack if config.deepstack else ()
        more = [merge(each) for merge, each in zip(mergers, states[len(read) :], strict=True)]
        return torch.cat((features, *more), -1) if more else features


class Newline(nn.Module):
    """A learned state behind those of each picture."""

    def __init__(self, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.state = nn.Parameter(torch.zeros(hidden_size, dtype=dtype))

    def forward(self, features: Tensor) -> Tensor:
        """Return the states of pictures [N, P, E] and, behind them, the learned one: [N, P + 1, E]."""
        return torch.cat((features, self.state.expand(features.shape[0], 1, -1)), 1)
