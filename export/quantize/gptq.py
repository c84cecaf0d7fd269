"""Round a matrix so that its products err least on the inputs that a calibration text makes.

    rows [N, K] float32, gram [K, K] float32  →  integers, scales and zero points of its blocks, [N, B, L]

The squared error of x · (w − ŵ) over all inputs x is (w − ŵ) G (w − ŵ)ᵀ with their Gram matrix G = Σ xᵀx. Inputs are
rounded one after another, those of most power first; what rounding one adds to that error is taken back, as far as it
can be, by the weights of those to come. What no weight can take back any more is what a step costs, and each block has
the range whose nearest integers cost least by that. Rows do not depend on each other.

What layers before err, a layer's own weights make up for as far as they can: not they themselves are rounded, but those
whose products with the inputs as they come are nearest to theirs with the inputs as they should be (`making_up`).

Sources: Frantar et al., 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", and
the order from its authors' program; Li et al., 2025, "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric
Calibration", for inputs as they should be, which here are approached by least squares before anything is rounded. Two
more things are otherwise here, so that a checkpoint alone can tell a right matrix from a wrong one: ranges are a few
parts of that of the weights as they were, and no integer is further than `REACH` from the nearest one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeformer.export.quantize.rounding import Rounded, joined, ranges_of_least_cost
from edgeformer.quantization import WeightFormat

DAMPING = 0.01
"""Part of the mean power of an input that is added to that of each: few tokens are not to be trusted entirely."""
RIDGE = 0.1
"""The same, where weights make up for inputs. With 0.03, what tiny-llama lost of 4 bits hung on the text that it had
read (a sixth between two of them); with 0.1 it did not."""
REACH = 4
"""Steps between an integer and the one that is nearest to its weight, at most."""
STEP = 32
"""Inputs after which those to come are corrected, in one product."""
ROWS = 2048
"""Rows at a time: what changes from input to input stays in the processor's cache."""


@dataclass(frozen=True)
class Costs:
    """What errors in the inputs' weights cost.

    order: int64 [K], the inputs in the order in which they are rounded. factor: the upper triangular U with
    UᵀU = (gram + damping)⁻¹, [K, K] float32, both axes in that order. Row i over its diagonal is what one step of the
    i-th input costs those after it, and 1 / Uᵢᵢ² what its squared error costs once they have done what they can.
    """

    order: Tensor
    factor: Tensor

    def of_errors(self) -> Tensor:
        """What a squared error of each input costs [K], in their own order."""
        costs = torch.empty(len(self.order))
        costs[self.order] = self.factor.diagonal() ** -2
        return costs


def costs_of(gram: Tensor) -> Costs:
    """The costs by a Gram matrix [K, K] float32."""
    power = float(gram.diagonal().mean()) or 1.0  # of inputs that are all zero, any rounding is right
    order = gram.diagonal().argsort(descending=True, stable=True)
    # With both axes reversed, the lower factor of a matrix is an upper one: U is its inverse.
    backwards = order.flip(0)
    damped, damping, failed = gram[backwards[:, None], backwards], DAMPING * power, 1
    while failed:
        damped.diagonal().add_(damping)
        lower, failed = torch.linalg.cholesky_ex(damped)
        damping *= 10  # of a Gram matrix that float32 made indefinite
    del damped
    upper = lower.flip(0, 1)
    del lower  # several of them, of a wide layer, are what takes memory
    return Costs(order, torch.linalg.solve_triangular(upper, torch.eye(len(gram)), upper=True))


def error_compensation(gram: Tensor, lost: Tensor) -> Tensor:
    """C [K, K] with which W + W C makes of inputs as they come what W makes of them as they should be, or nearly.

    gram: Σ x̂ᵀx̂ of the inputs x̂ as they come. lost: Σ (x − x̂)ᵀx̂, of what they lack. Both [K, K] float32.
    """
    power = float(gram.diagonal().mean()) or 1.0
    return torch.cholesky_solve(lost.t(), torch.linalg.cholesky(gram + RIDGE * power * torch.eye(len(gram)))).t()


def round_for_inputs(rows: Tensor, costs: Costs, form: WeightFormat, aims: Tensor | None = None) -> Rounded:
    """Round a matrix [N, K] to a format for inputs whose errors cost so much.

    aims: weights [N, K] that are to be met instead of these, within the ranges and the reach of these.
    """
    parts = zip(rows.split(ROWS), (rows if aims is None else aims).split(ROWS), strict=True)
    return joined([_round(part, aim, costs, form) for part, aim in parts])


def _round(rows: Tensor, aims: Tensor, costs: Costs, form: WeightFormat) -> Rounded:
    """A few rows. What is computed with has inputs first, [K, N]: one input after another is read."""
    block = form.block or rows.shape[1]
    blocks = rows.unflatten(1, (-1, block))
    scales, zeros = ranges_of_least_cost(blocks, costs.of_errors().unflatten(0, (-1, block)), form)
    by_block = list(zip(scales.t(), zeros.t().float(), strict=True))
    order, factor = costs.order.tolist(), costs.factor
    exact, weights = rows.t()[costs.order], aims.t()[costs.order]
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
    return Rounded(integers.t().reshape(blocks.shape).contiguous(), scales, zeros)


def _steps(weights: Tensor, scale: Tensor) -> Tensor:
    """The nearest whole numbers of steps; of blocks of zeros, none."""
    return torch.where(scale == 0, 0, weights / scale).round_()
