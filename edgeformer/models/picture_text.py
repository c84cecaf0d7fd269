"""A causal language model that reads pictures: a decoder, a tower, and what makes states of one of the other's."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import (
    AveragePoolProjector,
    Grid,
    LinearProjector,
    MergerProjector,
    MlpProjector,
    NormConfig,
    PictureTextConfig,
    PixelShuffleProjector,
    RotaryConfig,
)
from edgeformer.layers import LayerCache, make_norm
from edgeformer.layers.position import TokenAngles, angles_by_axes
from edgeformer.models.decoder import Decoder
from edgeformer.models.grid_vision import GridVisionEncoder
from edgeformer.models.vision import VisionEncoder
from edgeformer.ops.activation import activate


class PictureText(Decoder):
    """The decoder of `PictureTextConfig`, which is the text model by itself, beside its tower and its projector."""

    def __init__(self, config: PictureTextConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.seeing = config
        tower = config.vision
        if tower.kind == "grid_vision":
            self.vision: nn.Module = GridVisionEncoder(tower, dtype)
        else:
            self.vision = VisionEncoder(tower, dtype)
        sizes = config.feature_size, config.hidden_size
        match config.projector:
            case PixelShuffleProjector() as projector:
                self.projector: nn.Module = ShuffledPatches(projector, *sizes, dtype)
            case MlpProjector() as projector:
                in_squares = config.grid_vision is not None
                self.projector = DenseLayers(projector, *sizes, dtype, in_squares=in_squares)
            case AveragePoolProjector() as projector:
                self.projector = PooledPatches(projector, config.patch_grid, *sizes, dtype)
            case LinearProjector() as projector:
                self.projector = DenseLayer(projector, *sizes, dtype)
            case MergerProjector() as projector:
                self.projector = PatchMerger(projector, projector.norm, *sizes, dtype)
                mergers = (PatchMerger(projector, None, *sizes, dtype) for _ in config.deepstack or ())
                self.deepstack = nn.ModuleList(mergers)
        if config.newline:
            self.newline = Newline(config.hidden_size, dtype)

    def embed_wide(self, input_ids: Tensor) -> Tensor:
        """Return scaled embeddings of tokens, int64 [B, S], as `read_embeddings` takes them: [B, S, E · (1 + D)]."""
        x = self.embed_tokens(input_ids)
        more = self.seeing.wide_size - self.config.hidden_size
        return F.pad(x, (0, more)) if more else x

    def see(self, pixel_values: Tensor, grid: Tensor | None = None) -> Tensor:
        """Return what stands in the place of embeddings for pictures: states [N, tokens, E] of each.

        pixel_values: [N, channels, height, width], or [B, pictures, channels, height, width] where the graph has such
        an axis (`PictureTextConfig.tiled`); in any float type. Where pictures have any size, it is the patches of one,
        [P, numbers], and grid its rows and columns, [[1, rows, columns]]; the states are [1, tokens, E · (1 + D)], with
        those that are added behind the first D blocks.
        """
        if isinstance(self.vision, GridVisionEncoder):
            assert grid is not None
            return self._see_any_size(self.vision, pixel_values, grid)
        assert isinstance(self.vision, VisionEncoder)
        if self.seeing.tiled:
            pixel_values = pixel_values.flatten(0, 1)
        states = self.vision.states_after(pixel_values, self.seeing.feature_layers)
        if not self.seeing.keeps_prefix:
            states = [each[:, self.seeing.vision.prefix_tokens :] for each in states]
        features: Tensor = self.projector(torch.cat(states, -1) if len(states) > 1 else states[0])
        return self.newline(features) if self.seeing.newline else features

    def _see_any_size(self, vision: GridVisionEncoder, pixel_values: Tensor, grid: Tensor) -> Tensor:
        """Return the states of one picture, beside each other with those that are added behind the first blocks."""
        layers = (*self.seeing.feature_layers, *(self.seeing.deepstack or ()))
        states = vision.states_after(pixel_values, grid, layers)
        mergers = self.deepstack if self.seeing.deepstack else ()
        found = [self.projector(states[0]), *(merge(x) for merge, x in zip(mergers, states[1:], strict=True))]
        return torch.cat(found, -1) if len(found) > 1 else found[0]

    def read_embeddings(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        caches: Sequence[LayerCache],
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, list[LayerCache]]:
        """Return what `forward` returns, of scaled embeddings [B, S, E], or what stands in their place.

        They are [B, S, E · (1 + D)] where D states more are added behind the first blocks, zeros for tokens.
        position_ids: int64 [3, B, S], where positions have axes (`PictureTextConfig.axes`). Where the config has blocks
        that attend both ways, all of S is one.
        """
        added: Sequence[Tensor] = ()
        if self.seeing.deepstack:
            inputs_embeds, *added = inputs_embeds.split(self.config.hidden_size, -1)
        x, run = self.begin(inputs_embeds, inputs_embeds, attention_mask)
        axes, angles = self.seeing.axes, dict[RotaryConfig, TokenAngles]()
        if axes is not None:
            assert position_ids is not None
            angles = {
                each: angles_by_axes(self.rotary_table(each), position_ids, axes) for each in self.shared.rotaries
            }
        run = replace(run, bidirectional=self.seeing.bidirectional, angles=angles)
        return self.run_blocks(x, run, caches, added=added)

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
    """The projector that `MlpProjector` describes. in_squares: the patches of a square come one after the other."""

    def __init__(
        self, config: MlpProjector, inputs: int, outputs: int, dtype: torch.dtype, *, in_squares: bool = False
    ):
        super().__init__()
        self.config, self.in_squares = config, in_squares
        size = config.size or outputs
        self.norm = make_norm(config.norm, inputs, dtype=dtype)
        self.input = nn.Linear(inputs, size, bias=config.bias, dtype=dtype)
        self.output = nn.Linear(size, outputs, bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, P / factor², E] of the states of patches [N, P, E']."""
        if self.in_squares:  # of one picture
            return self._projected(states.squeeze(0).view(-1, self.input.in_features)).unsqueeze(0)
        return self._projected(states if self.config.factor is None else squares(states, self.config.factor))

    def _projected(self, x: Tensor) -> Tensor:
        features: Tensor = self.output(activate(self.config.activation, self.input(self.norm(x)), self.config.beta))
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


class PatchMerger(nn.Module):
    """The projector that `MergerProjector` describes.

    norm: of the state of each patch; None to normalize those of a square together.
    """

    def __init__(self, config: MergerProjector, norm: NormConfig | None, inputs: int, outputs: int, dtype: torch.dtype):
        super().__init__()
        self.config, self.together = config, norm is None
        self.norm = make_norm(config.norm, inputs if norm is None else inputs // config.factor**2, dtype=dtype)
        self.input = nn.Linear(inputs, inputs, dtype=dtype)
        self.output = nn.Linear(inputs, outputs, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return [1, P / factor², E] of the states of patches [1, P, E'], those of a square one after the other."""
        width, x = self.input.in_features, states.squeeze(0)
        x = self.norm(x.view(-1, width)) if self.together else self.norm(x).view(-1, width)
        features: Tensor = self.output(activate(self.config.activation, self.input(x)))
        return features.unsqueeze(0)
