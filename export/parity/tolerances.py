"""How far a graph may be from float64: one row a figure, each with its reason.

Limits follow the model: eager PyTorch, run in the graph's own precision on the same tokens, shows how much rounding
this model amplifies, and a graph may be a little worse than that. A limit is

    max(floor of the precision, factor of the precision × eager's own figure)

so the floor only speaks where eager is luckily exact. Eager differs from itself by up to 1.4 times in its largest
error, 1.6 in its worst position and 2.4 in its largest divergence when only the order of its sums changes;
tools/verification/calibrate_parity.py prints it. Factors are above that, and far below what any wrong formula does
(docs/explanation/parity.md).
"""

from dataclasses import dataclass

from edgeformer.manifest import Arithmetic

UNIT_ROUNDOFF: dict[Arithmetic, float] = {"fp32": 2.0**-24, "fp16": 2.0**-11}
"""Half the distance from 1 to the next number: no arithmetic of this precision is better."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A row of the table; factor and floor by precision."""

    figure: str
    factor: dict[Arithmetic, float]
    floor: dict[Arithmetic, float]
    reason: str

    def of(self, precision: Arithmetic, eager: float | None) -> float:
        """The limit for a graph beside which eager PyTorch has this figure."""
        scaled = 0.0 if eager is None else self.factor[precision] * eager
        return max(self.floor[precision], scaled)


def _same(value: float) -> dict[Arithmetic, float]:
    return {"fp32": value, "fp16": value}


NONE = _same(0.0)

LIMITS: dict[str, Limit] = {
    limit.figure: limit
    for limit in (
        Limit(
            figure="median ratio",
            factor=NONE,
            floor={"fp32": 2.0, "fp16": 3.0},
            reason="rmse of the logits over eager's, at the median position: another order of sums, no other maths",
        ),
        Limit(
            figure="worst ratio",
            factor=NONE,
            floor=_same(3.0),
            reason="the graph's worst position over eager's worst: chance picks both, and eager's own moves by 1.6",
        ),
        *(
            Limit(
                figure=f"far {which} ratio",
                factor=NONE,
                floor=_same(4.0),
                reason="behind thousands of tokens a kernel that adds one by one errs more than eager's blocks",
            )
            for which in ("median", "worst")
        ),
        Limit(
            figure="max error",
            factor=_same(3.0),
            floor={"fp32": 1e-6, "fp16": 1e-3},
            reason="largest error of a logit over the largest logit: extremes vary more than means, by up to 3 times",
        ),
        Limit(
            figure="nmse",
            factor=_same(9.0),
            floor={"fp32": 1e-12, "fp16": 1e-6},
            reason="squared error over squared logits: the square of 3 times eager's",
        ),
        Limit(
            figure="mean KL",
            factor=_same(9.0),
            floor={"fp32": 1e-12, "fp16": 1e-6},
            reason="divergence of the next-token distribution grows with the square of the error",
        ),
        Limit(
            figure="max KL",
            factor=_same(9.0),
            floor={"fp32": 1e-11, "fp16": 1e-5},
            reason="the same at the worst position",
        ),
        Limit(
            figure="difference",
            factor=_same(6.0),
            floor={"fp32": 2e-6, "fp16": 2e-3},
            reason="two ways to the same logits may each be off by the limit of max error, in opposite directions",
        ),
        Limit(
            figure="cache ratio",
            factor=NONE,
            floor={"fp32": 2.0, "fp16": 3.0},
            reason="rmse of a layer's keys or values over eager's, at the worst layer, as for logits",
        ),
        Limit(
            figure="cache step",
            factor=_same(6.0),
            floor=_same(1e-4),
            reason="an int8 cache may hold either neighbour of what lies halfway, give or take eager's error there",
        ),
        Limit(
            figure="clipped",
            factor=NONE,
            floor=_same(0.05),
            reason="scales are measured: few numbers of other texts may be larger, and those of other scales are many",
        ),
    )
}
