"""Round a matrix so that its products err least on the inputs that a calibration text makes.

    rows [N, K] float32, gram [K, K] float32  →  integers, scales and zero points of its blocks, [N, B, L]

The squared error of x · (w − ŵ) over all inputs x is (w − ŵ) G (w − ŵ)ᵀ with their Gram matrix G = Σ xᵀx. Inputs are
rounded one after another; what rounding one adds to that error is taken back, as far as it can be, by the weights of
those to come. Rows do not depend on each other.

Source: Frantar et al., 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers". Two
things are otherwise here, so that a checkpoint alone can tell a right matrix from a wrong one: scales and zero points
are those that `mse` finds for the weights as they were, and no integer is further than `REACH` from the nearest one.
"""

from dataclasses import replace

import torch
from torch import Tensor

from edgeformer.export.quantize.rounding import Rounded, joined, round_blocks
from edgeformer.quantization import WeightFormat

DAMPING = 0.01
"""Part of the mean power of an input that is added to that of each: few tokens are not to be trusted entirely."""
REACH = 4
"""Steps between an integer and the one that is nearest to its weight, at most."""
STEP = 32
"""Inputs after which those to come are corrected, in one product."""
ROWS = 2048
"""Rows at a time: what changes from input to input stays in the processor's cache."""


def round_for_inputs(rows: Tensor, factor: Tensor, form: WeightFormat) -> Rounded:
    """Round a matrix [N, K] to a format for inputs whose Gram matrix has this `inverse_factor`."""
    return joined([_round(part, factor, form) for part in rows.split(ROWS)])


def inverse_factor(gram: Tensor) -> Tensor:
    """The upper triangular U with UᵀU = (gram + damping)⁻¹, [K, K] float32.

    Row i over its diagonal is what one step of input i costs the inputs after it.
    """
    power = float(gram.diagonal().mean()) or 1.0  # of inputs that are all zero, any rounding is right
    # With both axes reversed, the lower factor of a matrix is an upper one: U is its inverse.
    damped, damping, failed = gram.flip(0, 1), DAMPING * power, 1
    while failed:
        damped.diagonal().add_(damping)
        lower, failed = torch.linalg.cholesky_ex(damped)
        damping *= 10  # of a Gram matrix that float32 made indefinite
    del damped
    upper = lower.flip(0, 1)
    del lower  # several of them, of a wide layer, are what takes memory
    return torch.linalg.solve_triangular(upper, torch.eye(len(gram)), upper=True)


def _round(rows: Tensor, factor: Tensor, form: WeightFormat) -> Rounded:
    """A few rows. What is computed with has inputs first, [K, N]: one input after another is read."""
    found = round_blocks(rows.unflatten(1, (-1, form.block or rows.shape[1])), replace(form, rounding="mse"))
    _, blocks, block = found.integers.shape
    scales, zeros = found.scales.t(), found.zeros.t().float()  # [B, N]
    weights = rows.t().clone(memory_format=torch.contiguous_format)
    integers = torch.empty(weights.shape, dtype=torch.uint8)
    for start in range(0, len(weights), STEP):
        stop = min(start + STEP, len(weights))
        here, across = weights[start:stop], factor[start:stop, start:stop]
        errors = torch.empty_like(here)
        for index, weight in enumerate(here):
            scale, zero = scales[(start + index) // block], zeros[(start + index) // block]
            low, high = -zero, 2 * form.zero - 1 - zero
            near = _steps(rows[:, start + index], scale).clamp_(low, high)
            low, high = torch.maximum(low, near - REACH), torch.minimum(high, near + REACH)
            steps = _steps(weight, scale).clamp_(low, high)
            integers[start + index] = steps + zero
            errors[index] = (weight - steps * scale) / across[index, index]
            here[index + 1 :].addr_(across[index, index + 1 :], errors[index], alpha=-1)
        weights[stop:].addmm_(factor[start:stop, stop:].t(), errors, alpha=-1)
    return Rounded(integers.t().unflatten(1, (blocks, block)).contiguous(), found.scales, found.zeros)


def _steps(weights: Tensor, scale: Tensor) -> Tensor:
    """The nearest whole numbers of steps; of blocks of zeros, none."""
    return torch.where(scale == 0, 0, weights / scale).round_()
