"""Holds quantized weights to the original ones, block by block.

What a graph computes of its integers is compared with what PyTorch computes of the same integers, so that this alone
tells whether they mean the model.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from edgeformer.export.parity.report import Check
from edgeformer.export.parity.stored import StoredWeights
from edgeformer.quantization import WeightFormat

SLACK = 1.01
"""Of float16 scales, and of float32 arithmetic."""


def judge_weights(original: Mapping[str, Tensor], stored: StoredWeights) -> list[Check]:
    """One check of all parameters that are quantized; none, where the stored weights are all that is known."""
    if (isinstance(original, StoredWeights) and original.formats) or not stored.formats:
        return []
    worst = max(
        (_worst(stored.by_output(name, original[name].float()), stored.by_output(name, stored[name]), form), name)
        for name, form in stored.formats.items()
    )
    return [
        Check(
            name="weights: block error",
            what=f"rmse of a block over what rounding to the nearest step may err, at the worst block, in {worst[1]}",
            value=worst[0], limit=SLACK, eager=None,
            reason="that is half a step, more only where a symmetric range ends; a better scale errs less",
        )
    ]  # fmt: skip


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
