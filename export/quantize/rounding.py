"""Round blocks of weights to integers.

    blocks [N, B, L] float32  →  integers [N, B, L] of 0…2^bits − 1, scales [N, B], zero points [N, B]

so that scale · (integer − zero point) is near the weight. Symmetric formats have the middle of the range as their zero
point. A block of zeros has the scale 0 and integers that mean 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeformer.quantization import WeightFormat

SEARCHED = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Parts of the full range to try: what lies beyond is clipped, and the rest is finer."""
CHUNK = 1 << 18
"""Weights that are rounded at a time: a few copies of them stay in the processor's cache."""


@dataclass(frozen=True)
class Rounded:
    """Integers uint8 [N, B, L], scales float32 [N, B], zero points uint8 [N, B]."""

    integers: Tensor
    scales: Tensor
    zeros: Tensor

    def weights(self) -> Tensor:
        """What the integers mean: [N, B, L] float32."""
        return (self.integers.float() - self.zeros[..., None]) * self.scales[..., None]


def round_blocks(blocks: Tensor, form: WeightFormat) -> Rounded:
    """Round blocks [N, B, L] to a format."""
    size = max(1, CHUNK // blocks[0].numel())
    return joined([_round(chunk, form) for chunk in blocks.split(size)])


def ranges_of_least_cost(blocks: Tensor, costs: Tensor, form: WeightFormat) -> tuple[Tensor, Tensor]:
    """Scales and zero points [N, B] with which the nearest integers of blocks [N, B, L] cost least.

    costs: of a squared error, [B, L] float32. The ranges to choose from are those parts of the whole one that
    `SEARCHED` has.
    """
    low, high = blocks.amin(-1), blocks.amax(-1)
    power = _power_of_two(torch.maximum(high, -low))
    blocks = blocks * power[..., None]
    costs = costs / costs.mean(-1, keepdim=True)
    scales, zeros = _range(low * power, high * power, form)
    least, best = torch.full_like(scales, torch.inf), scales
    for part in SEARCHED:
        tried = scales * part
        errors = blocks - _steps(blocks, _inverse(tried), zeros, form) * tried[..., None]
        cost = (errors.square_() * costs).sum(-1)
        best = torch.where(cost < least, tried, best)
        least = torch.minimum(least, cost)
    return best / power, zeros.to(torch.uint8)


def joined(parts: Sequence[Rounded]) -> Rounded:
    """Blocks of several outputs, one below the other."""
    return Rounded(*(torch.cat([getattr(part, name) for part in parts]) for name in ("integers", "scales", "zeros")))


def _round(blocks: Tensor, form: WeightFormat) -> Rounded:
    low, high = blocks.amin(-1), blocks.amax(-1)
    # Squares of very small and very large weights are beyond float32: powers of two bring each block near 1, exactly.
    power = _power_of_two(torch.maximum(high, -low))
    blocks = blocks * power[..., None]
    scales, zeros = _range(low * power, high * power, form)
    if form.rounding == "mse":
        inverse, scales = _search(blocks, _inverse(scales), zeros, form)
    else:
        inverse = _inverse(scales)
    integers = _steps(blocks, inverse, zeros, form).add_(zeros[..., None])
    return Rounded(integers.to(torch.uint8), scales / power, zeros.to(torch.uint8))


def _power_of_two(largest: Tensor) -> Tensor:
    """What brings magnitudes near 1; 1 for zeros."""
    exponents = torch.frexp(largest).exponent.clamp(-126, 126)
    return torch.ldexp(torch.ones_like(largest), -exponents)


def _range(low: Tensor, high: Tensor, form: WeightFormat) -> tuple[Tensor, Tensor]:
    """Scales and zero points [N, B] with which nothing is clipped by more than a step, of what blocks hold."""
    if form.symmetric:
        # The range has one integer more below zero: let the weight of largest magnitude be that one, whatever its sign.
        extreme = torch.where(high > -low, high, low)
        return -extreme / form.zero, torch.full_like(low, form.zero)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scales = (high - low) / (2 * form.zero - 1)
    return scales, (-low / scales).nan_to_num(form.zero).round()


def _inverse(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 0, 1 / scales)


def _steps(blocks: Tensor, inverse: Tensor, zeros: Tensor, form: WeightFormat) -> Tensor:
    """The nearest integers, counted from the zero point: [N, B, L] float32."""
    steps = (blocks * inverse[..., None]).round_()
    # Between numbers clamp_ is over ten times as fast as between tensors that are broadcast.
    if form.symmetric:
        return steps.clamp_(-form.zero, form.zero - 1)
    return steps.add_(zeros[..., None]).clamp_(0, 2 * form.zero - 1).sub_(zeros[..., None])


def _search(blocks: Tensor, inverse: Tensor, zeros: Tensor, form: WeightFormat) -> tuple[Tensor, Tensor]:
    """The best of several ranges for each block: what to multiply with before rounding, and the scale.

    Integers q have the least error with the scale ⟨w, q⟩ / ⟨q, q⟩, and it is |w|² − ⟨w, q⟩² / ⟨q, q⟩; so the best q
    have the largest last term.
    """
    best, best_inverse, best_scale = torch.zeros_like(inverse), inverse, torch.zeros_like(inverse)
    for part in SEARCHED:
        tried = inverse / part
        steps = _steps(blocks, tried, zeros, form)
        product, power = (blocks * steps).sum(-1), steps.square_().sum(-1)
        scale = (product / power).nan_to_num_(0, 0, 0)
        better = product * scale > best
        best = torch.where(better, product * scale, best)
        best_inverse, best_scale = torch.where(better, tried, best_inverse), torch.where(better, scale, best_scale)
    return best_inverse, best_scale
