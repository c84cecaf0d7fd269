"""Tables of sines and cosines, for rotary embeddings and for position embeddings.

Tables are computed in float64 and rounded once to the dtype of the graph. transformers computes angles in float32, so
that its tables differ from these by up to 6e-8 · position: the angle times float32's relative rounding error of 2⁻²⁴.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    QueryTemperature,
    RotaryAxes,
    RotaryConfig,
    SinusoidalPositions,
    YarnScaling,
)


class RotaryTable(nn.Module):
    """Buffers cos and sin [context_length, rotary_dim / 2], whose values `rotary_table` computes."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: RotaryConfig, context_length: int, dtype: torch.dtype):
        super().__init__()
        for name in ("cos", "sin"):
            table = torch.empty(context_length, config.rotary_dim // 2, dtype=dtype)
            self.register_buffer(name, table, persistent=False)


@dataclass(frozen=True)
class TokenAngles:
    """Cosines and sines [B · S, R/2] of the angles by which tokens turn, in the place of a table of positions.

    rows: where those of each token are, int64 [B, S], or of each half of its heads, [B, 2·S] (`RotaryConfig.halves`).
    """

    cos: Tensor
    sin: Tensor
    rows: Tensor

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor) -> "TokenAngles":
        """Return the angles of tokens, of cosines and sines [B, S, R/2]."""
        batch, length, pairs = cos.shape
        rows = torch.arange(batch * length, device=cos.device).view(batch, length)
        return cls(cos.reshape(batch * length, pairs), sin.reshape(batch * length, pairs), rows)


class ConstantTable(nn.Module):
    """A buffer [rows, width] with one row per position or distance; the config determines its values."""

    table: Tensor

    def __init__(self, rows: int, width: int, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("table", torch.empty(rows, width, dtype=dtype), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows of the table at `rows` int64 [B, S]: [B, S, width]."""
        return F.embedding(rows, self.table)


def angles_by_axes(table: RotaryTable, positions: Tensor, axes: RotaryAxes) -> TokenAngles:
    """Return the angles of tokens at positions of three axes, int64 [3, B, S]; see `RotaryAxes`."""
    of_pairs = torch.tensor(axes.of_pairs)
    found = []
    for name in ("cos", "sin"):
        time, height, width = (F.embedding(each, getattr(table, name)) for each in positions.unbind(0))  # [B, S, R/2]
        found.append(torch.where(of_pairs == 0, time, torch.where(of_pairs == 1, height, width)))
    return TokenAngles.of(*found)


def sinusoidal_table(config: SinusoidalPositions, rows: int, size: int) -> Tensor:
    """Return float64 [rows, size]: sin and cos of (position + offset) / base^(2i / size). See `SinusoidalPositions`."""
    width = size - 2 if config.to_base else size
    frequencies = config.base ** -(torch.arange(0, size, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(rows, dtype=torch.float64) + config.offset, frequencies)
    if config.interleaved:
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    return torch.cat((angles.sin(), angles.cos()), -1)


def temperature_table(config: QueryTemperature, rows: int) -> Tensor:
    """Return the factor of queries at each position, float64 [rows, 1]; see `QueryTemperature`."""
    steps = torch.floor((torch.arange(rows, dtype=torch.float64) + config.first) / config.floor_scale)
    return (1 + config.scale * torch.log1p(steps)).unsqueeze(1)


def rotary_table(config: RotaryConfig, context_length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of position · frequency, times the scaling's attention factor: float64 [C, R/2] each.

    C is context_length, R rotary_dim.
    """
    positions = torch.arange(context_length, dtype=torch.float64)
    angles = torch.outer(positions, rotary_frequencies(config))
    scaling = config.scaling
    factor = scaling.attention_factor if isinstance(scaling, YarnScaling | LongRopeScaling) else 1.0
    return angles.cos() * factor, angles.sin() * (-factor if config.backward else factor)


def rotary_frequencies(config: RotaryConfig) -> Tensor:
    """Return the frequency of each pair in radians per position, after scaling: float64 [R/2]."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float64) / config.rotary_dim
    frequencies = config.base**-exponents
    match config.scaling:
        case None:
            return frequencies
        case LinearScaling(factor=factor):
            return frequencies / factor
        case ProportionalScaling(factor=factor, fraction=fraction):
            rotated = int(fraction * config.rotary_dim // 2)
            return torch.where(torch.arange(len(frequencies)) < rotated, frequencies / factor, 0.0)
        case LongRopeScaling(factors=factors):
            return frequencies / torch.tensor(factors, dtype=torch.float64)
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            return _yarn(frequencies, scaling, config)
    raise ValueError(f"no rule for {config.scaling!r}")


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Interpolate by the rotations of a pair over the original context.

    Frequencies with more than high_freq_factor rotations are kept, those with fewer than low_freq_factor are divided
    by `factor`.
    """
    rotations = scaling.original_context_length * frequencies / (2 * math.pi)
    kept = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return frequencies * kept + frequencies / scaling.factor * (1 - kept)


def _yarn(frequencies: Tensor, scaling: YarnScaling, config: RotaryConfig) -> Tensor:
    """Interpolate over a ramp between the pairs that rotate beta_fast and beta_slow times in the original context."""

    def pair_with_rotations(rotations: float) -> float:
        wavelength = scaling.original_context_length / (rotations * 2 * math.pi)
        return config.rotary_dim * math.log(wavelength) / (2 * math.log(config.base))

    low, high = pair_with_rotations(scaling.beta_fast), pair_with_rotations(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    width = (high - low) or 0.001  # as in the reference implementation, against a division by zero
    divided = ((torch.arange(len(frequencies), dtype=torch.float64) - low) / width).clamp(0, 1)
    return frequencies * (1 - divided) + frequencies / scaling.factor * divided
