"""Holds the weights of a quantized bundle to the original ones: integers block by block, all others to the last bit.

What a graph computes of its weights is compared with what PyTorch computes of the same weights, so that this alone
tells whether they mean the model.

A calibration text lets weights err more than they must, each for the others of its row; no text is at hand here. But
their ranges are parts of that of the weights as they were, and their integers stay within reach of the nearest ones
(`quantize.gptq`), so these are what is judged.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.parity.report import Check
from edgeformer.export.quantize.gptq import REACH
from edgeformer.export.quantize.rounding import SEARCHED
from edgeformer.quantization import WeightFormat

SLACK = 1.01
"""Of float16 scales, and of float32 arithmetic."""
SHARE_OF_STEP = 0.1
"""The same, where 128 steps of a scale add up; what is wrong is wrong by whole steps."""
SHARE_OF_RANGE = 0.002
"""The same, of a scale by itself; parts to choose from are 0.05 apart."""


def judge_weights(original: Mapping[str, Tensor], stored: StoredWeights) -> list[Check]:
    """Checks of all parameters; none, where the stored weights are all that is known."""
    if isinstance(original, StoredWeights) and original.formats:
        return []
    kept = [(_difference(original[name], stored[name]), name) for name in stored if name not in stored.formats]
    errors, distances, ranges, offsets = [], [], [], []
    for name, form in stored.formats.items():
        weight, rounded = (stored.output_rows(name, each[name].float()) for each in (original, stored))
        if form.rounding != "gptq":
            errors.append((_worst(weight, rounded, form), name))
            continue
        grid = _Grid(weight, *stored.steps(name), form)
        distances.append((grid.distance(rounded), name))
        ranges.append((grid.range(), name))
        if not form.symmetric:
            offsets.append((grid.offset(), name))
    checks = []
    if kept:
        checks += [
            _check(
                "unquantized", kept, 0,
                "largest difference of a weight that is not quantized from the checkpoint's, in the precision that it "
                "is stored in",
                "such weights are copied",
            )
        ]  # fmt: skip
    if errors:
        checks += [
            _check(
                "block error", errors, SLACK,
                "rmse of a block over what rounding to the nearest step may err, at the worst block",
                "that is half a step, more only where a symmetric range ends; a better scale errs less",
            )
        ]  # fmt: skip
    if distances:
        checks += [
            _check(
                "calibrated steps", distances, SHARE_OF_STEP,
                f"steps by which a weight is further from what is stored for it than {REACH} and a half, at the worst",
                f"calibration chooses among the nearest step and the {REACH} on either side of it",
            )
        ]  # fmt: skip
    if ranges:
        parts = ", ".join(f"{part:g}" for part in SEARCHED)
        checks += [
            _check(
                "calibrated ranges", ranges, SHARE_OF_RANGE,
                "by which part of the range of a block's weights its scale is further from one that calibration may "
                "choose, at the worst block",
                f"it chooses among the parts {parts}",
            )
        ]  # fmt: skip
    if offsets:
        checks += [
            _check(
                "calibrated zero points", offsets, SHARE_OF_STEP,
                "steps by which a zero point is further from the zero of its block's range than half of one, at the "
                "worst block",
                "it is the nearest integer",
            )
        ]  # fmt: skip
    return checks


def _check(figure: str, found: list[tuple[float, str]], limit: float, what: str, reason: str) -> Check:
    value, name = max(found)
    return Check(
        name=f"weights: {figure}", what=f"{what}, in {name}", value=value, limit=limit, eager=None, reason=reason
    )


def _difference(original: Tensor, stored: Tensor) -> float:
    """NaN counts as infinitely wrong."""
    return float((original.to(stored.dtype) - stored).abs().float().nan_to_num(torch.inf).max())


class _Grid:
    """The numbers that blocks of a parameter [N, K] can be stored as, by their scales and zero points [N, B]."""

    def __init__(self, weight: Tensor, scales: Tensor, zeros: Tensor, form: WeightFormat):
        self._blocks = weight.unflatten(1, (scales.shape[1], -1))
        self._scales, self._zeros, self._form = scales.float()[..., None], zeros[..., None], form
        stored = torch.finfo(scales.dtype)
        self._digit = stored.smallest_normal * stored.eps / 2

    def _steps(self, blocks: Tensor) -> Tensor:
        return torch.where(self._scales == 0, 0, blocks / self._scales)

    def distance(self, rounded: Tensor) -> float:
        """By how many steps a weight is further from what is stored [N, K] than calibration may move it, at most."""
        exact = self._steps(self._blocks).clamp(-self._zeros, 2 * self._form.zero - 1 - self._zeros)
        steps = self._steps(rounded.unflatten(1, self._blocks.shape[1:])) - exact
        return max(0.0, float(steps.abs().nan_to_num(torch.inf).max()) - REACH - 0.5)

    def range(self) -> float:
        """By which part of its block's range a scale is further from one that calibration may choose, at most."""
        low, high = self._limits()
        whole = (high - low) / (2 * self._form.zero - 1)
        if self._form.symmetric:
            # The weight of largest magnitude is the lowest integer, whatever its sign.
            whole = torch.where(high > -low, high, low) / -self._form.zero
        # Very small scales in float16 have few digits.
        errors = ((self._scales - torch.tensor(SEARCHED) * whole).abs() - self._digit).clamp(min=0)
        errors = torch.where(errors == 0, 0, errors / whole.abs())
        return float(errors.amin(-1).nan_to_num(torch.inf).max())

    def offset(self) -> float:
        """By how many steps a zero point is further from the zero of its block's range than rounding it explains."""
        low, high = self._limits()
        expected = torch.where(high == low, self._form.zero, -low * (2 * self._form.zero - 1) / (high - low))
        return max(0.0, float((self._zeros - expected).abs().max()) - 0.5)

    def _limits(self) -> tuple[Tensor, Tensor]:
        """What the weights of each block are between, with 0, float64 [N, B, 1]."""
        blocks = self._blocks.double()
        return blocks.amin(-1, keepdim=True).clamp(max=0), blocks.amax(-1, keepdim=True).clamp(min=0)


def _worst(weight: Tensor, stored: Tensor, form: WeightFormat) -> float:
    """Of a parameter [N, K] whose rows are in blocks; NaN counts as infinitely wrong."""
    block = form.block or weight.shape[-1]
    blocks, rounded = (each.unflatten(-1, (-1, block)) for each in (weight, stored))
    low, high = blocks.amin(-1, keepdim=True).clamp(max=0), blocks.amax(-1, keepdim=True).clamp(min=0)
    steps = torch.maximum(high, -low) / form.zero if form.symmetric else (high - low) / (2 * form.zero - 1)
    allowed = torch.full_like(blocks, 0.5)
    if form.symmetric:
        # The range has an integer less on the side away from the extreme, where what is nearest to it is clipped.
        other_side = torch.where(high > -low, -blocks, blocks)
        allowed = (other_side / steps - (form.zero - 1)).clamp(min=0.5)
    ratio = ((blocks - rounded) / steps).square().mean(-1).sqrt() / allowed.square().mean(-1).sqrt()
    of_zeros = rounded.abs().amax(-1) / torch.finfo(torch.float32).tiny
    return float(torch.where(steps[..., 0] == 0, of_zeros, ratio).nan_to_num(torch.inf).max())
