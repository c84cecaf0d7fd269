"""The table of limits: how far each figure of a graph may be from float64, with the reason.

Limits depend on the model: eager PyTorch, run in the graph's own precision on the same tokens, shows how much this
model amplifies rounding, and a graph may be a little worse than that. A limit is

    max(floor of the precision, factor of the precision × eager's own figure)

so the floor applies only where eager is nearly exact by chance. When only its summation order changes, eager's largest
error changes by a factor of up to 1.4, its worst position by 1.6 and its largest KL divergence by 2.4
(`tools/verification/calibrate_parity.py` measures it). The factors are above that, and far below the effect of any
wrong formula (docs/explanation/parity.md). A tower may add up thousands of products in one sum: its limits are the
error of such a sum at least (`SUM_ERRORS`). A trained model has a few large activations, whose rounding a kernel
carries through all of a sum that it makes one product after another (`one_by_one`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from edgeformer.export.reference.summation_orders import products_of
from edgeformer.manifest.parts import Arithmetic

UNIT_ROUNDOFF: dict[Arithmetic, float] = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Half the distance from 1 to the next number: the relative error of a single rounding."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A row of the table, with a factor and a floor for each precision."""

    figure: str
    factor: dict[Arithmetic, float]
    floor: dict[Arithmetic, float]
    reason: str

    def of(self, precision: Arithmetic, eager: float | None, longest_sum: int = 0) -> float:
        """Return the limit of a graph where eager PyTorch's own figure is `eager`.

        longest_sum: products that are added up in one sum; 0 where no limit follows from that.
        """
        scaled = 0.0 if eager is None else self.factor[precision] * eager
        summed = SUM_ERRORS[self.figure](longest_sum) if self.figure in SUM_ERRORS else 0.0
        return max(self.floor[precision], scaled, summed)


def summed_rmse(products: int) -> float:
    """Return the expected error of a float32 sum that is made one product after another, relative to the sum's size.

    Addition k rounds a sum of k products, which is √k times as large as one, by up to a unit roundoff u: n variances
    u²k/3 add up to u²n²/6, and the whole sum is √n times as large as a product. Eager adds in blocks, and errs less.
    Source: Higham and Mary, SIAM Journal on Scientific Computing 42 (2020), A3427, for centred products.
    """
    return UNIT_ROUNDOFF["fp32"] * (products / 6) ** 0.5


NORM_DEVIATIONS = 4
"""Standard deviations by which the worst of some thousand positions errs."""


def norm_error(numbers: int) -> float:
    """Return how far a float32 norm may scale the worst position, where it adds squares one after another.

    Addition k rounds k of n squares by up to a unit roundoff u: variances (uk/n)²/3 add up to u²n/9, and the root
    halves the error. Measured: of 768 normal numbers, onnxruntime's SkipLayerNormalization errs by a root mean square
    of 2.1e-7, and at the worst of 4,000 positions by 9.6e-7, of 1.1e-6 here; eager PyTorch, which adds in blocks, by
    1.7e-7.
    """
    return NORM_DEVIATIONS * UNIT_ROUNDOFF["fp32"] * numbers**0.5 / 6


def longest_sum(*modules: nn.Module) -> int:
    """Return the largest number of products that a layer of some modules adds up; 0 where they have none."""
    return max((products_of(each) for module in modules for each in module.modules()), default=0)


EAGER_SUM = 350
"""Products that eager PyTorch adds one after another, before it begins another sum. Measured: SmolLM2-135M errs 2.0 to
2.2 times as much in keys, values and logits where its sums of 1,536 products are made one by one, the root of
1,536 / 350."""


def one_by_one(products: int) -> float:
    """Return the largest ratio of errors of a right graph to eager's where it makes float32 sums one after another.

    Rounding at the size of one large product goes on to the end of a sum, and errs by the root of the additions until
    there. Half as much again is left to chance.
    """
    return 1.5 * (products / EAGER_SUM) ** 0.5


RATIOS = ("median ratio", "cache ratio")
"""Figures of logits and of what layers keep that are ratios of typical errors."""


SUM_ERRORS: dict[str, Callable[[int], float]] = {
    # An element whose partial sums are as large as the largest element errs √6 times as much.
    "max error": lambda products: UNIT_ROUNDOFF["fp32"] * products**0.5,
    "nmse": lambda products: summed_rmse(products) ** 2,
}
"""Functions from the number of products of the longest sum to a figure, where it is made one after another."""


def _same(value: float) -> dict[Arithmetic, float]:
    return {"fp32": value, "fp16": value, "bf16": value}


def _floors(fp32: float, fp16: float, power: int = 1) -> dict[Arithmetic, float]:
    """Return floors of a figure that grows with the roundoff to this power: bfloat16's follows from float16's.

    No GPU has shown yet whether bfloat16 needs more than that (docs/reference/cuda.md).
    """
    ratio = UNIT_ROUNDOFF["bf16"] / UNIT_ROUNDOFF["fp16"]
    return {"fp32": fp32, "fp16": fp16, "bf16": fp16 * ratio**power}


NONE = _same(0.0)

LIMITS: dict[str, Limit] = {
    limit.figure: limit
    for limit in (
        Limit(
            figure="median ratio",
            factor=NONE,
            floor={"fp32": 2.0, "fp16": 3.0, "bf16": 3.0},
            reason="RMS error of logits over eager's, at the median position: only summation orders differ",
        ),
        Limit(
            figure="worst ratio",
            factor=NONE,
            floor=_same(3.0),
            reason="RMS error at the worst position over eager's worst: summation order alone changes it by 1.6",
        ),
        Limit(
            figure="position ratio",
            factor=NONE,
            floor=_same(10.0),
            reason="RMS error over eager's typical one in several orders, at the same position: where two experts are "
            "nearly equal, eager chooses otherwise in some order, too; right graphs reached 4.1, and 28 where it did "
            "not, wrong ones 33 and more",
        ),
        *(
            Limit(
                figure=f"far {which} ratio",
                factor=NONE,
                floor=_same(4.0),
                reason="behind thousands of tokens, a kernel that adds one by one errs more than eager's blocks",
            )
            for which in ("median", "worst")
        ),
        Limit(
            figure="max error",
            factor=_same(3.0),
            floor=_floors(1e-6, 1e-3),
            reason="largest error of a logit over the largest logit: extremes vary up to 3 times, more than means",
        ),
        Limit(
            figure="nmse",
            factor=_same(9.0),
            floor=_floors(1e-12, 1e-6, power=2),
            reason="normalised mean squared error: the square of 3 times eager's error",
        ),
        Limit(
            figure="mean KL",
            factor=_same(9.0),
            floor=_floors(1e-12, 1e-6, power=2),
            reason="KL divergence of the next token's distribution: it grows with the square of the error",
        ),
        Limit(
            figure="max KL",
            factor=_same(9.0),
            floor=_floors(1e-11, 1e-5, power=2),
            reason="KL divergence at the worst position: it grows with the square of the error",
        ),
        Limit(
            figure="difference",
            factor=_same(6.0),
            floor=_floors(2e-6, 2e-3),
            reason="two ways to the same logits may each err by the limit of max error, in opposite directions",
        ),
        Limit(
            figure="cache ratio",
            factor=NONE,
            floor=_same(3.0),
            reason="RMS error of a layer's keys or values over eager's, at the worst layer: chance picks it, and where "
            "one position amplifies rounding, its error is that of the layer",
        ),
        Limit(
            figure="state ratio",
            factor=NONE,
            floor={"fp32": 5.0, "fp16": 8.0, "bf16": 8.0},
            reason="RMS error of a state of fixed size over eager's, at the worst layer. It is of one token: a head "
            "that returns almost zero is divided by its length, which amplifies rounding; right models reached 4.3 and "
            "6.6",
        ),
        Limit(
            figure="cache step",
            factor=_same(6.0),
            floor=_same(1e-4),
            reason="rounding errors decide which one is cached of two numbers, where a value lies halfway between them",
        ),
        Limit(
            figure="clipped",
            factor=NONE,
            floor=_same(0.05),
            reason="the scales are measured on a text: of another one few values are out of range",
        ),
    )
}
