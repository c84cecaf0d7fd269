"""A causal language model that reads pictures: a decoder, a tower, and what makes states of one of the other's."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from edgeformer.config import (
    AveragePoolProjector,
    Grid,
    LinearProjector,
    MlpProjector,
    PictureTextConfig,
    PixelShuffleProjector,
)
from edgeformer.layers import LayerCache, make_norm
from edgeformer.models.decoder import Decoder
from edgeformer.models.vision import VisionEncoder
from edgeformer.ops.activation import activate


class PictureText(Decoder):
    """The decoder of `PictureTextConfig`, which is the text model by itself, beside its tower and its projector."""

    def __init__(self, config: PictureTextConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.seeing = config
        self.vision = VisionEncoder(config.vision, dtype)
        sizes = config.feature_size, config.hidden_size
        match config.projector:
            case PixelShuffleProjector() as projector:
                self.projector: nn.Module = ShuffledPatches(projector, *sizes, dtype)
            case MlpProjector() as projector:
                self.projector = DenseLayers(projector, *sizes, dtype)
            case AveragePoolProjector() as projector:
                self.projector = PooledPatches(projector, config.vision.patches.grid, *sizes, dtype)
            case LinearProjector() as projector:
                self.projector = DenseLayer(projector, *sizes, dtype)
        if config.newline:
            self.newline = Newline(config.hidden_size, dtype)

    def see(self, pixel_values: Tensor) -> Tensor:
        """Return what stands in the place of embeddings for pictures: states [N, tokens, E] of each.

        pixel_values: [N, channels, height, width], or [B, pictures, channels, height, width] where the graph has such
        an axis (`PictureTextConfig.tiled`); in any float type.
        """
        if self.seeing.tiled:
            pixel_values = pixel_values.flatten(0, 1)
        states = self.vision.states_after(pixel_values, self.seeing.feature_layers)
        if not self.seeing.keeps_prefix:
            states = [each[:, self.seeing.vision.prefix_tokens :] for each in states]
        features: Tensor = self.projector(torch.cat(states, -1) if len(states) > 1 else states[0])
        return self.newline(features) if self.seeing.newline else features

    def read_embeddings(
        self, inputs_embeds: Tensor, attention_mask: Tensor, caches: Sequence[LayerCache]
    ) -> tuple[Tensor, list[LayerCache]]:
        """Return what `forward` returns, of scaled embeddings [B, S, E], or what stands in their place.

        Where the config has blocks that attend both ways, all of S is one.
        """
        x, run = self.begin(inputs_embeds, inputs_embeds, attention_mask)
        return self.run_blocks(x, replace(run, bidirectional=self.seeing.bidirectional), caches)

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
                found, caches = self.run_blocks(*self.begin(piece, piece, mask), caches)
            else:
                found, caches = self.read_embeddings(piece, mask, caches)
            logits.append(found)
            start = end
        return torch.cat(logits, 1), list(caches)


class Newline(nn.Module):
    """A learned state behind those of each picture."""

    def __init__(self, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.state = nn.Parameter(torch.zeros(hidden_size, dtype=dtype))

    def forward(self, features: Tensor) -> Tensor:
        """Return the states of pictures [N, P, E] and, behind them, the learned one: [N, P + 1, E]."""
        return torch.cat((features, self.state.expand(features.shape[0], 1, -1)), 1)


class ShuffledPatches(nn.Module):
    """The projector that `PixelShuffleProjector` describes."""

    def __init__(self, config: PixelShuffleProjector, inputs: int, outputs: int, dtype: torch.dtype):
        super().__init__()
        self.factor = config.factor
        self.output = nn.Linear(inputs, outputs, bias=config.bias, dtype=dtype)

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

    def __init__(self, config: MlpProjector, inputs: int, outputs: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.norm = make_norm(config.norm, inputs, dtype=dtype)
        self.input = nn.Linear(inputs, outputs, bias=config.bias, dtype=dtype)
        self.output = nn.Linear(outputs, outputs, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, P / factor², E] of the states of patches [N, P, E']."""
        x = states if self.config.factor is None else squares(states, self.config.factor)
        x = activate(self.config.activation, self.input(self.norm(x)), self.config.beta)
        features: Tensor = self.output(x)
        return features


class PooledPatches(nn.Module):
    """The projector that `AveragePoolProjector` describes; grid: of the patches."""

    def __init__(self, config: AveragePoolProjector, grid: Grid, inputs: int, outputs: int, dtype: torch.dtype):
        super().__init__()
        self.factor, self.grid = config.factor, grid
        self.norm = make_norm(config.norm, inputs, dtype=dtype)
        self.output = nn.Linear(inputs, outputs, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, squares, E] of the states of patches [N, P, E']."""
        rows, columns = self.grid.rows // self.factor, self.grid.columns // self.factor  # of squares
        x = states.unflatten(1, (self.grid.rows, self.grid.columns))
        x = x[:, : rows * self.factor, : columns * self.factor]
        x = x.reshape(-1, rows, self.factor, columns, self.factor, x.shape[-1]).mean((2, 4))
        features: Tensor = self.output(self.norm(x.flatten(1, 2)))
        return features


class DenseLayer(nn.Module):
    """The projector that `LinearProjector` describes."""

    def __init__(self, config: LinearProjector, inputs: int, outputs: int, dtype: torch.dtype):
        super().__init__()
        self.output = nn.Linear(inputs, outputs, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, P, E] of states [N, P, E']."""
        features: Tensor = self.output(states)
        return features
