"""Projectors: the modules that make states of a text model of those of a tower of pictures.

Each is made of its config, and of that of the model, which has the sizes. Shapes: N pictures, P patches, E' the size of
a tower's states, E that of the text model's.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from edgeformer.config import TowerTextConfig
from edgeformer.config.projectors import (
    AveragePoolProjector,
    LinearProjector,
    MergedPatchesProjector,
    MergerProjector,
    MlpProjector,
    PixelShuffleProjector,
    StackedFramesProjector,
)
from edgeformer.layers import make_norm
from edgeformer.ops.activation import activate


class ShuffledPatches(nn.Module):
    """The projector that `PixelShuffleProjector` describes."""

    def __init__(self, config: PixelShuffleProjector, seeing: TowerTextConfig, dtype: torch.dtype):
        super().__init__()
        self.factor = config.factor
        self.output = nn.Linear(seeing.feature_size, seeing.hidden_size, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, P / factor², E] of the states of patches [N, P, E']."""
        features: Tensor = self.output(squares(states, self.factor))
        return features


def squares(states: Tensor, factor: int) -> Tensor:
    """Return the states of patches [N, P, E] of a square side by side, row by row: [N, P / factor², factor² · E]."""
    count, patches, hidden = states.shape
    rows = round(patches**0.5) // factor
    x = states.view(count, rows, factor, rows, factor, hidden)
    return x.transpose(2, 3).reshape(count, rows * rows, factor**2 * hidden)


class DenseLayers(nn.Module):
    """The projector that `MlpProjector` describes."""

    def __init__(self, config: MlpProjector, seeing: TowerTextConfig, dtype: torch.dtype):
        super().__init__()
        # The patches of a square come one after the other where pictures have any size.
        self.config, self.in_squares = config, seeing.tower.grid_input is not None
        inputs, outputs = seeing.feature_size, seeing.hidden_size
        size = config.size or outputs
        self.norm = make_norm(config.norm, inputs, dtype=dtype)
        self.input = nn.Linear(inputs, size, bias=config.bias, dtype=dtype)
        self.output = nn.Linear(size, outputs, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, P / factor², E] of the states of patches [N, P, E']."""
        if self.in_squares:  # of one picture
            x = states.view(1, -1, self.input.in_features)
        else:
            x = states if self.config.factor is None else squares(states, self.config.factor)
        features: Tensor = self.output(activate(self.config.activation, self.input(self.norm(x)), self.config.beta))
        return features


class PooledPatches(nn.Module):
    """The projector that `AveragePoolProjector` describes."""

    def __init__(self, config: AveragePoolProjector, seeing: TowerTextConfig, dtype: torch.dtype):
        super().__init__()
        self.config, self.factor = config, config.factor
        self.grid = None if seeing.tower.grid_input is not None else seeing.patch_grid
        self.norm = make_norm(config.norm, seeing.feature_size, dtype=dtype)
        if config.standardized:
            self.mean = nn.Parameter(torch.zeros(seeing.feature_size, dtype=dtype))
            self.deviation = nn.Parameter(torch.ones(seeing.feature_size, dtype=dtype))
        self.output = nn.Linear(seeing.feature_size, seeing.hidden_size, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, squares, E] of the states of patches [N, P, E']."""
        if self.config.scale is not None:  # which half precision may have no room for
            states = states.to(torch.promote_types(states.dtype, torch.float32))
        x = self._means(states)
        if self.config.scale is not None:
            x = x * self.config.scale
        if self.config.standardized:
            x = (x - self.mean.to(x.dtype)) * self.deviation.to(x.dtype)
        features: Tensor = self.output(self.norm(x).to(self.output.weight.dtype))
        return features if self.grid is not None else features.unsqueeze(0)

    def _means(self, states: Tensor) -> Tensor:
        """Return [N, squares, E'], or [squares, E'] of a picture of any size."""
        if self.grid is None:  # the patches of a square of one picture come one after the other
            width = states.shape[-1]
            x = states.squeeze(0)
            return x if self.factor == 1 else x.view(-1, self.factor**2, width).mean(1)
        rows, columns = self.grid.rows // self.factor, self.grid.columns // self.factor  # of squares
        x = states.unflatten(1, (self.grid.rows, self.grid.columns))
        x = x[:, : rows * self.factor, : columns * self.factor]
        return x.reshape(-1, rows, self.factor, columns, self.factor, x.shape[-1]).mean((2, 4)).flatten(1, 2)


class DenseLayer(nn.Module):
    """The projector that `LinearProjector` describes."""

    def __init__(self, config: LinearProjector, seeing: TowerTextConfig, dtype: torch.dtype):
        super().__init__()
        self.output = nn.Linear(seeing.feature_size, seeing.hidden_size, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, P, E] of states [N, P, E']."""
        features: Tensor = self.output(states)
        return features


class PatchMerger(nn.Module):
    """The projector that `MergerProjector` describes. together: whether the states of a square have one norm."""

    def __init__(self, config: MergerProjector, seeing: TowerTextConfig, dtype: torch.dtype, *, together: bool = False):
        super().__init__()
        self.config, self.together = config, together
        inputs, outputs = seeing.feature_size, seeing.hidden_size
        self.norm = make_norm(config.norm, inputs if together else inputs // config.joined, dtype=dtype)
        self.input = nn.Linear(inputs, inputs, dtype=dtype)
        self.output = nn.Linear(inputs, outputs, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [1, P / factor², E] of the states of patches [1, P, E'], those of a square one after the other."""
        joined = 1, -1, self.input.in_features
        x = self.norm(states.view(joined)) if self.together else self.norm(states).view(joined)
        features: Tensor = self.output(activate(self.config.activation, self.input(x)))
        return features


class MergedPatches(nn.Module):
    """The projector that `MergedPatchesProjector` describes."""

    def __init__(self, config: MergedPatchesProjector, seeing: TowerTextConfig, dtype: torch.dtype):
        super().__init__()
        self.config = config
        inputs, outputs, width = seeing.feature_size, seeing.hidden_size, seeing.feature_size // config.joined
        self.norm = make_norm(config.norm, width, dtype=dtype)
        self.merge = nn.Linear(inputs, width, bias=False, dtype=dtype)
        self.input = nn.Linear(width, outputs, bias=config.bias, dtype=dtype)
        self.output = nn.Linear(outputs, outputs, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [1, P / factor², E] of the states of patches [1, P, E'], those of a square one after the other."""
        joined, width = self.config.joined, self.merge.out_features
        x = self.norm(states.squeeze(0)).view(-1, joined, width).transpose(1, 2)
        x = x.contiguous().view(-1, joined * width).unsqueeze(0)  # number by number
        x = activate(self.config.activation, self.input(self.merge(x)), self.config.beta)
        features: Tensor = self.output(x)
        return features


class StackedFrames(nn.Module):
    """The projector that `StackedFramesProjector` describes."""

    def __init__(self, config: StackedFramesProjector, seeing: TowerTextConfig, dtype: torch.dtype):
        super().__init__()
        self.config, outputs = config, seeing.hidden_size
        self.input = nn.Linear(seeing.feature_size, outputs, bias=False, dtype=dtype)
        self.output = nn.Linear(outputs, outputs, bias=False, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, P / frames, E] of states [N, P, E']."""
        count, length, _ = states.shape
        x = states.reshape(count, length // self.config.frames, self.input.in_features)
        features: Tensor = self.output(activate(self.config.activation, self.input(x), self.config.beta))
        return features


PROJECTORS: dict[str, Callable[..., nn.Module]] = {
    "average_pool": PooledPatches,
    "linear": DenseLayer,
    "merged_patches": MergedPatches,
    "merger": PatchMerger,
    "mlp": DenseLayers,
    "pixel_shuffle": ShuffledPatches,
    "stacked_frames": StackedFrames,
}
"""The modules of projectors, by the kind of their config."""
