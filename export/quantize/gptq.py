"""GPTQ: round a matrix so that its products have the least error on the inputs of a calibration text.

    rows [N, K] float32, gram [K, K] float32  →  integers, scales and zero points of its blocks, [N, B, L]

With the Gram matrix G = Σ xᵀx of the inputs x, the squared error of x · (w − ŵ) over all inputs is (w − ŵ) G (w − ŵ)ᵀ.
Inputs (columns) are rounded one after another, those of most power first. After each one, the columns that are not yet
rounded change so that they compensate its error as far as they can. The error that no later column can compensate is
the cost of a rounding step, and each block has the range whose nearest integers have the least of this cost. Rows do
not depend on each other.

Error compensation between layers: the inputs of a layer have errors from the layers before it. So the weights that are
rounded are those whose products with these inputs are nearest to the original products (`error_compensation`).

Sources: Frantar et al., 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
with the column order of its authors' program. Li et al., 2025, "GPTAQ: Efficient Finetuning-Free Quantization for
Asymmetric Calibration", for the compensation between layers, which is solved here by least squares before rounding.
Two deviations let a checkpoint alone tell a right matrix from a wrong one: ranges are fractions (`fractions`) of those
of the original weights, and no integer is further than `REACH` from the nearest one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeformer.export.quantize.rounding import QuantizedBlocks, concatenate, ranges_of_least_cost
from edgeformer.manifest.quantization import WeightFormat

DAMPING = 0.01
"""Fraction of the mean of the Gram matrix's diagonal that is added to it, against overfitting to few tokens (GPTQ)."""
RIDGE = 0.1
"""Damping of the error compensation between layers. With 0.03, the loss of tiny-llama in 4 bits depended on the
calibration text (a sixth between two of them); with 0.1 it did not."""
REACH = 4
"""Largest distance, in steps, between an integer and the one that is nearest to its original weight."""
STEP = 32
"""Columns that are rounded before the columns after them are corrected, in one product."""
ROWS = 2048
"""Rows that are rounded at a time: the data of one column stay in the processor's cache."""


@dataclass(frozen=True)
class Costs:
    """The costs of rounding errors, by the Gram matrix of a layer's inputs.

    order: int64 [K], the inputs in the order in which they are rounded. factor: float32 [K, K], the upper triangular U
    with UᵀU = (gram + damping)⁻¹, both axes in that order. Row i divided by its diagonal is the correction of the later
    inputs per step of input i; 1 / Uᵢᵢ² is the cost of its squared error after that correction.
    """

    order: Tensor
    factor: Tensor

    def of_errors(self) -> Tensor:
        """Return the cost of a squared error of each input, [K], in the order of the matrix."""
        costs = torch.empty(len(self.order))
        costs[self.order] = self.factor.diagonal() ** -2
        return costs


def costs_of(gram: Tensor) -> Costs:
    """Return the costs by a Gram matrix [K, K] float32, which stays unchanged."""
    power = float(gram.diagonal().mean()) or 1.0  # for inputs that are all zero, any rounding is right
    order = gram.diagonal().argsort(descending=True, stable=True)
    # The lower Cholesky factor with both axes reversed is upper triangular: U is its inverse.
    backwards = order.flip(0)
    damped, damping, failed = gram[backwards[:, None], backwards], DAMPING * power, 1
    while failed:
        damped.diagonal().add_(damping)
        lower, failed = torch.linalg.cholesky_ex(damped)
        damping *= 10  # float32 may make a Gram matrix indefinite
    del damped
    upper = lower.flip(0, 1)
    del lower  # [K, K] copies for a wide layer are what takes memory
    return Costs(order, torch.linalg.solve_triangular(upper, torch.eye(len(gram)), upper=True))


def error_compensation(gram: Tensor, lost: Tensor) -> Tensor:
    """Return C [K, K], with which products of W + W C with the actual inputs are nearest to W's with the exact ones.

    gram: Σ x̂ᵀx̂ of the actual inputs x̂. lost: Σ (x − x̂)ᵀx̂ with the exact inputs x. Both float32 [K, K].
    """
    power = float(gram.diagonal().mean()) or 1.0
    return torch.cholesky_solve(lost.t(), torch.linalg.cholesky(gram + RIDGE * power * torch.eye(len(gram)))).t()


def expected_error(rows: Tensor, costs: Costs, form: WeightFormat) -> float:
    """Return about which squared error products of a matrix [N, K] will have when it is rounded to a format.

    It is that of the nearest integers, at what errors cost after the inputs that come later have compensated them.
    """
    block, total = form.block or rows.shape[1], 0.0
    by_block = costs.of_errors().unflatten(0, (-1, block))
    for part in rows.split(ROWS):
        blocks = part.unflatten(1, (-1, block))
        scales, zeros = ranges_of_least_cost(blocks, by_block, form)
        low = -zeros.float()[..., None]
        steps = _steps(blocks, scales[..., None]).clamp_(low, low + 2 * form.zero - 1)
        total += float(((blocks - steps * scales[..., None]).square() * by_block).sum())
    return total


def round_for_inputs(rows: Tensor, costs: Costs, form: WeightFormat, targets: Tensor | None = None) -> QuantizedBlocks:
    """Round a matrix [N, K] to a format, given the costs of errors of its inputs.

    targets: weights [N, K] to approximate instead of `rows`, whose ranges and reach still apply.
    """
    parts = zip(rows.split(ROWS), (rows if targets is None else targets).split(ROWS), strict=True)
    return concatenate([_round(part, target, costs, form) for part, target in parts])


def _round(rows: Tensor, targets: Tensor, costs: Costs, form: WeightFormat) -> QuantizedBlocks:
    """Round at most ROWS rows. The loop works on transposed matrices [K, N], whose rows are the inputs."""
    block = form.block or rows.shape[1]
    blocks = rows.unflatten(1, (-1, block))
    scales, zeros = ranges_of_least_cost(blocks, costs.of_errors().unflatten(0, (-1, block)), form)
    by_block = list(zip(scales.t(), zeros.t().float(), strict=True))
    order, factor = costs.order.tolist(), costs.factor
    exact, weights = rows.t()[costs.order], targets.t()[costs.order]
    integers = torch.empty(weights.shape, dtype=torch.uint8)
    for start in range(0, len(weights), STEP):
        stop = min(start + STEP, len(weights))
        here, across = weights[start:stop], factor[start:stop, start:stop]
        errors = torch.empty_like(here)
        for index, weight in enumerate(here):
            place = order[start + index]
            scale, zero = by_block[place // block]
            low, high = -zero, 2 * form.zero - 1 - zero
            near = _steps(exact[start + index], scale).clamp_(low, high)
            low, high = torch.maximum(low, near - REACH), torch.minimum(high, near + REACH)
            steps = _steps(weight, scale).clamp_(low, high)
            integers[place] = steps + zero
            errors[index] = (weight - steps * scale) / across[index, index]
            here[index + 1 :].addr_(across[index, index + 1 :], errors[index], alpha=-1)
        weights[stop:].addmm_(factor[start:stop, stop:].t(), errors, alpha=-1)
    return QuantizedBlocks(integers.t().reshape(blocks.shape).contiguous(), scales, zeros)


def _steps(weights: Tensor, scale: Tensor) -> Tensor:
    """Return the nearest numbers of steps, 0 for blocks of zeros."""
    return torch.where(scale == 0, 0, weights / scale).round_()
