"""Parts of blocks that change a plain residual stream: learned scales, LAuReL, and the streams of AltUp."""

import torch
from torch import Tensor, nn

from edgeformer.config import AltUpConfig, NormConfig
from edgeformer.layers.norm import make_norm

SMALLEST = 1e-5
"""Mean square below which a stream is not made larger (modeling_gemma3n.py)."""


class Scale(nn.Module):
    """A learned factor of every feature [E], or of all features [1]."""

    def __init__(self, size: int, dtype: torch.dtype):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., E] times the factor."""
        return x * self.scale


class Laurel(nn.Module):
    """Learned augmented residual layer of low rank: x + norm(right(left(x))). Source: arXiv 2411.07501."""

    def __init__(self, rank: int, norm: NormConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.left = nn.Linear(hidden_size, rank, bias=False, dtype=dtype)
        self.right = nn.Linear(rank, hidden_size, bias=False, dtype=dtype)
        self.norm = make_norm(norm, hidden_size, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output [B, S, E] for x [B, S, E]."""
        return x + self.norm(self.right(self.left(x)))


class AltUp(nn.Module):
    """The router of a block's residual streams; see `AltUpConfig`. Streams are [B, S, N, E]."""

    def __init__(self, config: AltUpConfig, norm: NormConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config, count = config, config.streams
        self.norm = make_norm(norm, hidden_size, dtype=dtype)
        self.router = nn.Linear(hidden_size, count, bias=False, dtype=dtype)
        self.prediction = nn.Linear(count, count * count, bias=False, dtype=dtype)
        self.correction = nn.Linear(count, count, bias=False, dtype=dtype)
        self.output_scale = Scale(hidden_size, dtype) if config.output_scale else nn.Identity()

    def predict(self, streams: Tensor) -> Tensor:
        """Return the predicted streams [B, S, N, E]."""
        count = self.config.streams
        coefficients = self.prediction(self._routed(streams[:, :, self.config.active]))
        return streams + coefficients.view(*streams.shape[:2], count, count) @ streams

    def correct(self, predicted: Tensor, computed: Tensor) -> Tensor:
        """Return the streams after a block: predicted [B, S, N, E], of which the active one became `computed`."""
        change = computed - predicted[:, :, self.config.active]
        return predicted + (self.correction(self._routed(computed)) + 1).unsqueeze(-1) * change.unsqueeze(2)

    def active(self, streams: Tensor) -> Tensor:
        """Return the active stream [B, S, E], scaled as the layer input reads it."""
        scaled: Tensor = self.output_scale(streams[:, :, self.config.active])
        return scaled

    def _routed(self, x: Tensor) -> Tensor:
        """Return a number in (−1, 1) for each stream, [B, S, N], from one stream x [B, S, E]."""
        return torch.tanh(self.router(self.norm(x) * x.shape[-1] ** -1.0))


class StreamProjections(nn.Module):
    """Projections of streams, each scaled to the root mean square of the first one, which stays as it is."""

    def __init__(self, count: int, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        linear = [nn.Linear(hidden_size, hidden_size, bias=False, dtype=dtype) for _ in range(count - 1)]
        self.projections = nn.ModuleList(linear)

    def forward(self, streams: Tensor) -> Tensor:
        """Return the streams [B, S, N, E]; one stream [B, S, E] is what all of them are projected from."""
        many = streams.dim() == 4
        first = streams[:, :, 0] if many else streams
        size, result = torch.sqrt(_mean_square(first)), [first]
        for index, projection in enumerate(self.projections, 1):
            projected = projection(streams[:, :, index] if many else first)
            result.append(projected * (size / torch.sqrt(_mean_square(projected).clamp(min=SMALLEST))))
        return torch.stack(result, 2)


def _mean_square(x: Tensor) -> Tensor:
    return (x * x).mean(-1, keepdim=True)
