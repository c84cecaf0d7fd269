"""Check the weights of a quantized bundle against the original ones: integers by block, all others bit for bit.

The other checks compare what a graph and PyTorch compute with the same stored weights. Only these checks show whether
the stored weights are those of the model.

Weights that were calibrated with a text (GPTQ) err more than rounding requires, to compensate errors of their row. The
text is not available here, but each scale covers a known fraction of the range of its block's original weights, and
each integer is near the nearest one (`quantize/gptq.py`). So these are checked.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from edgeformer.checkpoints.expert_weights import WHOLE, read_blocks, read_expert, read_rows, row_slices
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.parity.report import Check
from edgeformer.export.quantize.gptq import REACH
from edgeformer.export.quantize.rounding import SEARCHED, fractions
from edgeformer.manifest.quantization import WeightFormat

BLOCK_ERROR_LIMIT = 1.01
"""Limit of a block's RMS error over that of rounding: 1, and 1 % for float16 scales and float32 arithmetic."""
STEP_LIMIT = 0.1
"""Limit of an excess in steps. Rounding of a scale adds up over the 128 steps of its range; faults are whole steps."""
RANGE_LIMIT = 0.002
"""Limit of a scale's relative distance from those that calibration may choose, which are 0.05 apart."""


def judge_weights(original: Mapping[str, Tensor], stored: StoredWeights) -> list[Check]:
    """Check all parameters; return no checks where only the stored weights are known."""
    if isinstance(original, StoredWeights) and original.formats:
        return []
    kept = [
        (_difference(*pair), name)
        for name in stored
        if name not in stored.formats
        for pair in _pairs(original, stored, name)
    ]
    errors, distances, ranges, offsets, copied = [], [], [], [], []
    for name, form in stored.formats.items():
        if not form.reads_calibration:
            copied += [(count, name) for count in _copied(original, stored, name, form)]
            for weight, rounded in _pairs(original, stored, name):
                rows, others = (stored.output_rows(name, each.float()) for each in (weight, rounded))
                errors.append((_block_error(rows, others, form), name))
            continue
        weight, rounded = (stored.output_rows(name, each[name].float()) for each in (original, stored))
        grid = _Grid(weight, *stored.steps(name), form, stored.scale_dtype(name))
        distances.append((grid.distance(rounded), name))
        ranges.append((grid.range(), name))
        if not form.symmetric:
            offsets.append((grid.offset(), name))
    tried = ", ".join(f"{fraction:g}" for fraction in SEARCHED)
    table = (
        (
            "unquantized", kept, 0.0,
            "largest difference of an unquantized weight from the checkpoint's, in its stored precision",
            "such weights are copied",
        ),
        (
            "block error", errors, BLOCK_ERROR_LIMIT,
            "RMS error of a block over the largest that rounding to the nearest step causes, at the worst block",
            "rounding errs by at most half a step, and by more only at the end of a symmetric range",
        ),
        (
            "copied blocks", copied, 0.0,
            "number of weights that differ from those of the integers and scales that the checkpoint stores",
            "integers of the checkpoint are copied where its blocks are those of the bundle",
        ),
        (
            "calibrated steps", distances, STEP_LIMIT,
            f"largest distance of a stored weight from the original, in steps beyond {REACH}.5",
            f"calibration chooses among the nearest step and the {REACH} on either side of it",
        ),
        (
            "calibrated ranges", ranges, RANGE_LIMIT,
            "largest distance of a scale from one that calibration may choose, as a fraction of its block's range",
            f"calibration chooses among fractions of the range, {tried}, and one that is symmetric",
        ),
        (
            "calibrated zero points", offsets, STEP_LIMIT,
            "largest distance of a zero point from the zero of its block's range, in steps beyond 0.5",
            "calibration rounds it to the nearest integer",
        ),
    )  # fmt: skip
    return [_check(figure, found, limit, what, reason) for figure, found, limit, what, reason in table if found]


def _check(figure: str, found: list[tuple[float, str]], limit: float, what: str, reason: str) -> Check:
    value, name = max(found)
    return Check(
        name=f"weights: {figure}", what=f"{what}, in {name}", value=value, limit=limit, eager=None, reason=reason
    )


def _pairs(original: Mapping[str, Tensor], stored: StoredWeights, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a parameter of the original and of the stored weights: its experts one by one, or its rows in pieces."""
    experts = stored.experts_of(name)
    if experts is None:
        if not stored.has_rows(name):
            yield original[name], stored[name]
            return
        for rows in row_slices(stored.shape_of(name)):
            yield read_rows(original, name, rows), stored.read_rows(name, rows)
        return
    for expert in range(experts):
        yield read_expert(original, name, expert), stored.read_expert(name, expert)


def _copied(original: Mapping[str, Tensor], stored: StoredWeights, name: str, form: WeightFormat) -> Iterator[float]:
    """Yield how many weights are not those of the checkpoint's integers and scales; nothing where it has no such ones.

    Scales of a narrower type, and those that a factor of their outputs multiplies, are rounded.
    """
    experts, precision = stored.experts_of(name), torch.finfo(stored.scale_dtype(name))
    parts: Sequence[slice | int] = [WHOLE] if experts is None else range(experts)
    for part in parts:
        found = read_blocks(original, name, form, part)
        if found is None:
            return
        steps, scales = found[0].float() - found[2][..., None], found[1][..., None]
        value = stored[name] if isinstance(part, slice) else stored.read_expert(name, part)
        rows = stored.output_rows(name, value.float()) if isinstance(part, slice) else value.float()
        difference = rows.unflatten(1, steps.shape[1:]) - steps * scales
        if not difference.any():  # NaN counts as true
            yield 0.0
            continue
        allowed = 2 * precision.eps * scales.abs().clamp(min=precision.smallest_normal) * steps.abs()
        yield float((~(difference.abs() <= allowed)).sum())


def _difference(original: Tensor, stored: Tensor) -> float:
    """Return the largest difference of two weights; NaN counts as an infinite one."""
    return float((original.to(stored.dtype) - stored).abs().float().nan_to_num(torch.inf).max())


class _Grid:
    """The numbers that the blocks of a weight [N, K] can be stored as, given their scales and zero points [N, B].

    scale_dtype: the type in which the scales are stored.
    """

    def __init__(self, weight: Tensor, scales: Tensor, zeros: Tensor, form: WeightFormat, scale_dtype: torch.dtype):
        self._blocks = weight.unflatten(1, (scales.shape[1], -1))
        self._scales, self._zeros, self._form = scales[..., None], zeros[..., None], form
        # A stored scale is that of the integers that products read, with unused bits.
        stored, unused = torch.finfo(scale_dtype), 1 << form.unused_bits
        self._rounding = self._scales.abs().clamp(min=unused * stored.smallest_normal) * stored.eps / 2

    def _steps(self, blocks: Tensor) -> Tensor:
        return torch.where(self._scales == 0, 0, blocks / self._scales)

    def distance(self, rounded: Tensor) -> float:
        """Return the largest distance of stored weights [N, K] from the original ones, in steps beyond REACH + 0.5."""
        exact = self._steps(self._blocks).clamp(-self._zeros, 2 * self._form.zero - 1 - self._zeros)
        steps = self._steps(rounded.unflatten(1, self._blocks.shape[1:])) - exact
        return max(0.0, float(steps.abs().nan_to_num(torch.inf).max()) - REACH - 0.5)

    def range(self) -> float:
        """Return the largest distance of a scale from one that calibration may choose, over its block's whole range."""
        low, high = self._limits()
        whole = (high - low) / (2 * self._form.zero - 1)
        if self._form.symmetric:
            # The weight of largest magnitude becomes the lowest integer, whatever its sign: of two any one.
            whole = torch.where(high > -low, high, low) / -self._form.zero
            whole = torch.where(high == -low, whole.abs() * self._scales.sign(), whole)
        # Bfloat16 scales and subnormal float16 scales have few digits.
        errors = ((self._scales - torch.tensor(fractions(self._form)) * whole).abs() - self._rounding).clamp(min=0)
        errors = torch.where(errors == 0, 0, errors / whole.abs())
        return float(errors.amin(-1).nan_to_num(torch.inf).max())

    def offset(self) -> float:
        """Return the largest distance of a zero point from the zero of its block's range, in steps beyond 0.5."""
        low, high = self._limits()
        expected = torch.where(high == low, self._form.zero, -low * (2 * self._form.zero - 1) / (high - low))
        return max(0.0, float((self._zeros - expected).abs().max()) - 0.5)

    def _limits(self) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest weight of each block, 0 included, float64 [N, B, 1]."""
        blocks = self._blocks.double()
        return blocks.amin(-1, keepdim=True).clamp(max=0), blocks.amax(-1, keepdim=True).clamp(min=0)


def _block_error(weight: Tensor, stored: Tensor, form: WeightFormat) -> float:
    """Return the largest RMS error of a block of a weight [N, K], over that of rounding; NaN counts as infinite."""
    if torch.equal(weight, stored):  # as copied blocks are
        return 0.0
    block = form.block or weight.shape[-1]
    whole = weight.shape[-1] // block * block
    if 0 < whole < weight.shape[-1]:  # zeros fill the last block, and would make its error smaller than it is
        pairs = zip(*(each.tensor_split([whole], -1) for each in (weight, stored)), strict=True)
        return max(_block_error(exact, rounded, form) for exact, rounded in pairs)
    blocks, rounded = (each.unflatten(-1, (-1, min(block, weight.shape[-1]))) for each in (weight, stored))
    low, high = blocks.amin(-1, keepdim=True).clamp(max=0), blocks.amax(-1, keepdim=True).clamp(min=0)
    steps = torch.maximum(high, -low) / form.zero if form.symmetric else (high - low) / (2 * form.zero - 1)
    allowed = torch.full_like(blocks, 0.5)
    if form.symmetric:
        # A symmetric range has one integer less on the side away from its extreme, where weights are clipped.
        other_side = torch.where(high > -low, -blocks, blocks)
        allowed = (other_side / steps - (form.zero - 1)).clamp(min=0.5)
    ratio = ((blocks - rounded) / steps).square().mean(-1).sqrt() / allowed.square().mean(-1).sqrt()
    of_zeros = rounded.abs().amax(-1) / torch.finfo(torch.float32).tiny
    return float(torch.where(steps[..., 0] == 0, of_zeros, ratio).nan_to_num(torch.inf).max())
