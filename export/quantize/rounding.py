"""Round blocks of weights to integers.

    blocks [N, B, L] float32  →  integers [N, B, L] from 0 to 2^bits − 1, scales [N, B], zero points [N, B]

so that scale · (integer − zero point) is near the weight. N are outputs, B blocks, L inputs per block; zeros may fill
the last one. The zero point of a symmetric format is the middle of the range. A block of zeros has the scale 0 and
integers equal to its zero point. Scales that are stored in float16 are rounded to it first, so that the integers are
those of the stored scales.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from edgeformer.manifest.quantization import WeightFormat

SEARCHED = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Fractions of a block's full range that are tried as its range. A smaller one clips outliers and has finer steps."""

CHUNK = 1 << 18
"""Weights that are rounded at a time: a few float32 copies of them stay in the processor's cache."""


@dataclass(frozen=True)
class QuantizedBlocks:
    """Integers uint8 [N, B, L], scales float32 [N, B] and zero points uint8 [N, B]."""

    integers: Tensor
    scales: Tensor
    zeros: Tensor

    def weights(self) -> Tensor:
        """Return the dequantized weights, float32 [N, B, L]."""
        return (self.integers.float() - self.zeros[..., None]) * self.scales[..., None]


def fractions(form: WeightFormat) -> tuple[float, ...]:
    """Return the fractions of a block's full range that are tried as its range.

    A symmetric range has one integer less on one side of zero. The last fraction is of the range that does without the
    extra one on the other: it clips nothing, and holds what was rounded to such a range before, as in GGUF's Q8_0.
    """
    return (*SEARCHED, form.zero / (form.zero - 1)) if form.symmetric else SEARCHED


def in_blocks(rows: Tensor, block: int | None) -> Tensor:
    """Return [..., K] as [..., B, L] of blocks of L; zeros fill the last one. block: None for one block of all K."""
    block = block or rows.shape[-1]
    missing = -rows.shape[-1] % block
    return (F.pad(rows, (0, missing)) if missing else rows).unflatten(-1, (-1, block))


def round_blocks(blocks: Tensor, form: WeightFormat) -> QuantizedBlocks:
    """Round blocks [N, B, L] to a format of the rounding `nearest` or `mse`."""
    size = max(1, CHUNK // blocks[0].numel())
    return concatenate([_round(chunk, form) for chunk in blocks.split(size)])


def ranges_of_least_cost(blocks: Tensor, costs: Tensor, form: WeightFormat) -> tuple[Tensor, Tensor]:
    """Return the scales and zero points [N, B] whose nearest integers to blocks [N, B, L] have the least cost.

    costs: the cost of a squared error of each input, float32 [B, L]. The ranges tried are those of `fractions`.
    """
    power = _power(blocks)
    blocks = blocks * power[..., None]
    costs = costs / costs.mean(-1, keepdim=True)
    scales, zeros = _range(blocks, form)
    least, best = torch.full_like(scales, torch.inf), scales
    for fraction in fractions(form):
        tried = _as_stored(scales * fraction, power, form)
        errors = blocks - _steps(blocks, _inverse(tried), zeros, form) * tried[..., None]
        cost = (errors.square_() * costs).sum(-1)
        best = torch.where(cost < least, tried, best)
        least = torch.minimum(least, cost)
    return best / power, zeros.to(torch.uint8)


def _as_stored(scales: Tensor, power: Tensor, form: WeightFormat) -> Tensor:
    """Return scales [N, B] of blocks that are multiplied by `power`, rounded to the type in which they are stored."""
    if form.scales == "fp32":
        return scales
    unused = 1 << form.unused_bits  # the stored scale is that of the integers with these bits
    return (scales / power / unused).half().float() * unused * power


def concatenate(parts: Sequence[QuantizedBlocks]) -> QuantizedBlocks:
    """Concatenate blocks along the outputs."""
    return QuantizedBlocks(
        *(torch.cat([getattr(part, name) for part in parts]) for name in ("integers", "scales", "zeros"))
    )


def _round(blocks: Tensor, form: WeightFormat) -> QuantizedBlocks:
    power = _power(blocks)
    blocks = blocks * power[..., None]
    scales, zeros = _range(blocks, form)
    if form.rounding == "mse":
        inverse, scales = _search(blocks, _inverse(scales), zeros, form)
        scales = _as_stored(scales, power, form)
    else:
        scales = _as_stored(scales, power, form)
        inverse = _inverse(scales)
    integers = _steps(blocks, inverse, zeros, form).add_(zeros[..., None])
    return QuantizedBlocks(integers.to(torch.uint8), scales / power, zeros.to(torch.uint8))


def _power(blocks: Tensor) -> Tensor:
    """Return the power of two [N, B] that brings the magnitude of each block near 1; 1 for blocks of zeros.

    Squares of very small and very large weights overflow float32, and a power of two scales them exactly.
    """
    largest = torch.maximum(blocks.amax(-1), -blocks.amin(-1))
    exponents = torch.frexp(largest).exponent.clamp(-126, 126)
    return torch.ldexp(torch.ones_like(largest), -exponents)


def _range(blocks: Tensor, form: WeightFormat) -> tuple[Tensor, Tensor]:
    """Return scales and zero points [N, B] that clip no weight of a block by more than one step."""
    low, high = blocks.amin(-1), blocks.amax(-1)
    if form.symmetric:
        # The range has one more integer below zero than above. A scale of either sign maps the extreme weight to it: of
        # two that are as large the first, as in GGUF's Q4_0, for which weights may have been trained.
        extreme, tied = torch.where(high > -low, high, low), high == -low
        if tied.any():
            extreme[tied] = _first_extremes(blocks[tied])
        return -extreme / form.zero, torch.full_like(low, form.zero)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scales = (high - low) / (2 * form.zero - 1)
    return scales, (-low / scales).nan_to_num(form.zero).round()


def _first_extremes(blocks: Tensor) -> Tensor:
    """Return the first weight of the largest magnitude of each block [B, L]."""
    magnitudes = blocks.abs()
    places = torch.where(
        magnitudes == magnitudes.amax(-1, keepdim=True), torch.arange(blocks.shape[-1]), blocks.shape[-1]
    )
    return blocks.gather(-1, places.amin(-1, keepdim=True))[..., 0]


def _inverse(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 0, 1 / scales)


def _steps(blocks: Tensor, inverse: Tensor, zeros: Tensor, form: WeightFormat) -> Tensor:
    """Return the nearest integers minus the zero point, float32 [N, B, L]."""
    steps = blocks * inverse[..., None]
    # clamp_ between numbers is over ten times as fast as between tensors that are broadcast.
    if form.symmetric:  # integers from 0 on whose halves are rounded up, sum by sum as in GGUF's Q4_0
        return steps.add_(form.zero + 0.5).floor_().sub_(form.zero).clamp_(-form.zero, form.zero - 1)
    return steps.round_().add_(zeros[..., None]).clamp_(0, 2 * form.zero - 1).sub_(zeros[..., None])


def _search(blocks: Tensor, inverse: Tensor, zeros: Tensor, form: WeightFormat) -> tuple[Tensor, Tensor]:
    """Return the inverse scales [N, B] to round with, and the scales to store, of least squared error.

    For weights w and integers q, the scale ⟨w, q⟩ / ⟨q, q⟩ has the least squared error, |w|² − ⟨w, q⟩² / ⟨q, q⟩. So the
    best integers have the largest ⟨w, q⟩² / ⟨q, q⟩.
    """
    best, best_inverse, best_scale = torch.zeros_like(inverse), inverse, torch.zeros_like(inverse)
    for fraction in fractions(form):
        tried = inverse / fraction
        steps = _steps(blocks, tried, zeros, form)
        product, power = (blocks * steps).sum(-1), steps.square_().sum(-1)
        scale = (product / power).nan_to_num_(0, 0, 0)
        better = product * scale > best
        best = torch.where(better, product * scale, best)
        best_inverse, best_scale = torch.where(better, tried, best_inverse), torch.where(better, scale, best_scale)
    return best_inverse, best_scale
