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


def judge_weights(
    original: Mapping[str, Tensor], stored: Mapping[str, Tensor], formats: Mapping[str, WeightFormat]
) -> list[Check]:
    """One check of all parameters that are quantized; none, where the stored weights are all that is known."""
    if isinstance(original, StoredWeights) or not formats:
        return []
    worst = max((_worst(original[name].float(), stored[name], form), name) for name, form in formats.items())
    return [
        Check(
            name="weights: block error",
            what=f"rmse of a block over half a step of its full range, at the worst block, in {worst[1]}",
            value=worst[0], limit=SLACK, eager=None,
            reason="no integer is further than half a step, and a better scale than that of the full range errs less",
        )
    ]  # fmt: skip


def _worst(weight: Tensor, stored: Tensor, form: WeightFormat) -> float:
    """Of a parameter [N, K] whose rows are in blocks; NaN counts as infinitely wrong."""
    blocks, rounded = (each.unflatten(-1, (-1, form.block)) for each in (weight, stored.float()))
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    steps = torch.maximum(high, -low) / form.zero if form.symmetric else (high - low) / (2 * form.zero - 1)
    ratio = (blocks - rounded).square().mean(-1).sqrt() / (steps / 2)
    return float(torch.where(steps == 0, rounded.abs().amax(-1), ratio).nan_to_num(torch.inf).max())
