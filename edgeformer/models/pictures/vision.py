"""Towers of pictures: a vision transformer over patches, and what it pools of its states."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import (
    AttentionPooler,
    Grid,
    PatchStem,
    PictureClassifier,
    PicturePooling,
    StackConfig,
    TokenPooler,
    VisionConfig,
)
from edgeformer.layers import FeedForward, make_norm
from edgeformer.models.stack import Run, Stack
from edgeformer.ops.activation import activate

TAPS = 4
"""Values of a side that a bicubic interpolation reads."""


class VisionEncoder(Stack):
    """A stack of bidirectional blocks over the patches of a picture; see `VisionConfig`."""

    position_rows: Tensor

    def __init__(self, config: VisionConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.config = config
        hidden = config.hidden_size
        self.stem = PatchProjection(config.patches, hidden, dtype)
        if config.prefix_tokens:
            self.prefix = PrefixTokens(config.prefix_tokens, hidden, dtype)
        if config.interpolated is not None:
            self.interpolation = Interpolation(config.context_length, dtype)
        if config.fractional_grids is not None:
            self.register_buffer("position_rows", torch.zeros(config.context_length, dtype=torch.int64))
        match config.pooler:
            case TokenPooler() as pooler:
                self.pooler: nn.Module = PooledToken(pooler, hidden, dtype)
            case AttentionPooler() as pooler:
                self.pooler = PooledAttention(pooler, hidden, dtype)
        if config.projection is not None:
            self.projection = nn.Linear(config.pooled_size, config.projection, bias=False, dtype=dtype)
        if config.classifier is not None:
            self.classifier = PictureLabels(config.classifier, hidden, config.prefix_tokens, dtype)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """Return the last states [B, S, E] and what is computed of them: pooled, projected [B, D], logits [B, labels].

        pixel_values: [B, channels, height, width], in any float type.
        """
        states = self.encode(pixel_values)
        outputs = [states]
        if self.config.pooler is not None:
            outputs.append(self.pooler(states))
        if self.config.projection is not None:
            outputs.append(self.projection(outputs[-1]))
        if self.config.classifier is not None:
            outputs.append(self.classifier(states))
        return tuple(outputs)

    def encode(self, pixel_values: Tensor) -> Tensor:
        """Return the last states [B, S, E]: those of the learned tokens, then those of patches row by row."""
        return self.states_after(pixel_values, [len(self.blocks)])[0]

    def states_after(self, pixel_values: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Return the states [B, S, E] after so many blocks each; those after the last one are normalized."""
        x = self.stem(pixel_values)
        batch, length = x.shape[0], self.config.context_length
        if self.config.prefix_tokens:
            x = self.prefix(x)
        places = torch.arange(length, device=x.device).unsqueeze(0)  # [1, S]
        if self.config.fractional_grids is not None:
            x = self.add_positions(x, self.position_rows.unsqueeze(0))
        elif self.config.interpolated is None:
            x = self.add_positions(x, places)
        else:
            x = x + self.interpolation(self.position_embedding(self.interpolation.rows))
        x = self.embedding_norm(x)
        run = Run(
            attention_mask=torch.ones(batch, length, dtype=torch.int64, device=x.device),
            positions=places,
            key_positions=places,
            biases={},
        )
        states = [x]
        for index in range(max(layers)):
            x, _ = self.run_block(index, x, (), run)
            states.append(x)
        return [self.final_norm(states[layer]) if layer == len(self.blocks) else states[layer] for layer in layers]

    def without_prefix(self, states: Tensor) -> Tensor:
        """Return the states [B, P, E] of patches alone, of those of all."""
        return states[:, self.config.prefix_tokens :]


class PatchProjection(nn.Module):
    """The linear map that `PatchStem` describes, as a convolution whose stride is its width."""

    def __init__(self, config: PatchStem, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        size = config.patch_height, config.patch_width
        self.convolution = nn.Conv2d(config.channels, hidden_size, size, stride=size, bias=config.bias, dtype=dtype)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the patches [B, P, E] of pictures [B, channels, height, width]."""
        x: Tensor = self.convolution(pixel_values.to(self.convolution.weight.dtype))
        return x.flatten(2).transpose(1, 2)


class PrefixTokens(nn.Module):
    """Learned tokens before the patches, each a parameter by its number."""

    def __init__(self, count: int, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        for index in range(count):
            self.register_parameter(str(index), nn.Parameter(torch.zeros(hidden_size, dtype=dtype)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens and, behind them, x [B, P, E]."""
        tokens = torch.stack(list(self.parameters(recurse=False))).unsqueeze(0)  # [1, n, E]
        return torch.cat((tokens.expand(x.shape[0], -1, -1), x), 1)


class Interpolation(nn.Module):
    """The positions of a grid, each a weighted sum of rows of the table of another grid."""

    rows: Tensor
    weights: Tensor

    def __init__(self, length: int, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("rows", torch.zeros(length, TAPS * TAPS, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(length, TAPS * TAPS, dtype=dtype))

    def forward(self, taps: Tensor) -> Tensor:
        """Return positions [1, S, E] of the rows [S, 16, E] that each reads."""
        # Not a product of matrices, which would be quantized. onnxruntime computes it once, when it loads the graph.
        return (taps * self.weights.unsqueeze(-1)).sum(1).unsqueeze(0)


class PooledToken(nn.Module):
    """The pooler that `TokenPooler` describes."""

    def __init__(self, config: TokenPooler, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.norm = make_norm(config.norm, hidden_size, dtype=dtype)
        if config.dense is not None:
            self.dense = nn.Linear(hidden_size, config.size or hidden_size, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return the pooled vectors [B, D] of states [B, S, E]."""
        x: Tensor = self.norm(states[:, 0])
        return x if self.config.dense is None else activate(self.config.dense, self.dense(x))


class PooledAttention(nn.Module):
    """The pooler that `AttentionPooler` describes."""

    def __init__(self, config: AttentionPooler, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.probe = nn.Parameter(torch.zeros(hidden_size, dtype=dtype))
        self.query = nn.Linear(hidden_size, hidden_size, dtype=dtype)
        self.key = nn.Linear(hidden_size, hidden_size, dtype=dtype)
        self.value = nn.Linear(hidden_size, hidden_size, dtype=dtype)
        self.output = nn.Linear(hidden_size, hidden_size, dtype=dtype)
        self.norm = make_norm(config.norm, hidden_size, dtype=dtype)
        self.feed_forward = FeedForward(config.feed_forward, hidden_size, dtype)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the pooled vectors [B, E] of states [B, S, E]; mask: int64 [B, S], zeros for padding."""
        batch, length, hidden = states.shape
        head_dim = hidden // self.config.num_heads
        query = self.query(self.probe.view(1, 1, -1)).expand(batch, -1, -1)  # [B, 1, E]
        key, value = (
            part(states).view(batch, length, -1, head_dim).transpose(1, 2) for part in (self.key, self.value)
        )  # [B, H, S, D]
        if mask is None:
            mask = torch.ones(batch, length, dtype=torch.int64, device=states.device)
        x = self.output(ops.cross_attention(query, key, value, mask, head_dim**-0.5))
        pooled: Tensor = x + self.feed_forward(self.norm(x))
        return pooled.squeeze(1)


class PictureLabels(nn.Module):
    """The classifier that `PictureClassifier` describes. prefix: tokens before the patches."""

    def __init__(self, config: PictureClassifier, hidden_size: int, prefix: int, dtype: torch.dtype):
        super().__init__()
        self.config, self.prefix = config, prefix
        labels = len(config.labels)
        self.output = nn.Linear(hidden_size * len(config.poolings), labels, dtype=dtype)
        if config.distilled:
            self.distilled = nn.Linear(hidden_size, labels, dtype=dtype)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits [B, labels] of states [B, S, E]; mask: int64 [B, S], zeros for padding."""
        vectors = [self._pooled(states, pooling, mask) for pooling in self.config.poolings]
        logits: Tensor = self.output(torch.cat(vectors, -1) if len(vectors) > 1 else vectors[0])
        return (logits + self.distilled(states[:, 1])) / 2 if self.config.distilled else logits

    def _pooled(self, states: Tensor, pooling: PicturePooling, mask: Tensor | None) -> Tensor:
        match pooling:
            case "first":
                return states[:, 0]
            case "patches":
                return states[:, self.prefix :].mean(1)
            case "all" if mask is not None:
                seen = mask.unsqueeze(-1).to(states.dtype)
                return (states * seen).sum(1) / seen.sum(1)
            case "all":
                return states.mean(1)


def picture_constants(config: StackConfig) -> dict[str, Tensor]:
    """Compute the buffers of a `VisionEncoder` that a `Stack` does not have: name → float64 or int64 tensor."""
    if config.fractional_grids is not None:
        return {"position_rows": fractional_rows(*config.fractional_grids)}
    if config.interpolated is None:
        return {}
    trained, wanted = config.interpolated
    rows, weights = interpolation(trained, wanted)
    prefix = config.context_length - wanted.patches
    first = torch.arange(prefix).unsqueeze(1).expand(-1, TAPS * TAPS)
    alone = torch.zeros(prefix, TAPS * TAPS, dtype=torch.float64)
    alone[:, :1] = 1
    return {
        "interpolation.rows": torch.cat((first, rows + prefix)),
        "interpolation.weights": torch.cat((alone, weights)),
    }


def fractional_rows(trained: Grid, pictures: Grid) -> Tensor:
    """Return the row of the table of positions for each patch, int64 [P], of pictures that the patches fill.

    It is computed in float32 as transformers' Idefics3VisionEmbeddings does: of a grid of 19 × 19, rounding makes one
    of another patch of some.
    """
    y, x = (
        torch.bucketize(
            torch.clamp(
                torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(float(count), dtype=torch.float32)),
                max=1.0 - 1e-6,
            ),
            torch.arange(1 / side, 1.0, 1 / side, dtype=torch.float32),
            right=True,
        )
        for side, count in ((trained.rows, pictures.rows), (trained.columns, pictures.columns))
    )
    return (y[:, None] * trained.columns + x).flatten()


def interpolation(trained: Grid, wanted: Grid) -> tuple[Tensor, Tensor]:
    """Return which rows of a table each patch of another grid reads, int64 [P, 16], and their weights, float64.

    It is torch's bicubic interpolation without aligned corners, whose coefficient is −0.75.
    """
    (y, vertical), (x, horizontal) = _taps(trained.rows, wanted.rows), _taps(trained.columns, wanted.columns)
    rows = y[:, None, :, None] * trained.columns + x[None, :, None, :]  # [rows, columns, 4, 4]
    weights = vertical[:, None, :, None] * horizontal[None, :, None, :]
    return rows.reshape(-1, TAPS * TAPS), weights.reshape(-1, TAPS * TAPS)


def _taps(trained: int, wanted: int) -> tuple[Tensor, Tensor]:
    """Return the four places of a side that each of `wanted` reads, int64 [wanted, 4], and their weights."""
    places, weights = [], []
    for index in range(wanted):
        at = (index + 0.5) * trained / wanted - 0.5
        first = math.floor(at)
        places.append([min(max(first + tap, 0), trained - 1) for tap in (-1, 0, 1, 2)])
        weights.append([_cubic(abs(first + tap - at)) for tap in (-1, 0, 1, 2)])
    return torch.tensor(places), torch.tensor(weights, dtype=torch.float64)


def _cubic(distance: float, a: float = -0.75) -> float:
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
