"""Choose a format for each group of matrices, so that all of them fit into a number of bytes and lose the least.

This is the multiple-choice knapsack: of every group exactly one choice is taken. It is solved by dynamic programming
over the bytes beyond the smallest choices, in units that divide all differences where these are few, and otherwise
rounded up, so that the result always fits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeformer.manifest.quantization import WeightFormat

MOST_UNITS = 1 << 16
"""Units that the bytes to be distributed are divided into at most: a byte of each for every group is kept."""


@dataclass(frozen=True)
class Choice:
    """A format that a group of matrices may have, its bytes, and the loss that it is expected to cause."""

    form: WeightFormat
    bytes: int
    loss: float


def choose(groups: Sequence[Sequence[Choice]], budget: int) -> list[Choice]:
    """Return one choice of each group, of at most `budget` bytes and of the least sum of losses.

    Of equal sums the one of smaller choices in earlier groups is taken. Raises ValueError where the smallest choices
    do not fit.
    """
    smallest = [min(choice.bytes for choice in group) for group in groups]
    room = budget - sum(smallest)
    if room < 0:
        raise ValueError(f"{sum(smallest)} bytes are the least, and the budget is {budget}.")
    extra = [[choice.bytes - least for choice in group] for group, least in zip(groups, smallest, strict=True)]
    room = min(room, sum(map(max, extra)))
    unit = max(math.gcd(*(each for group in extra for each in group)), math.ceil(room / MOST_UNITS), 1)
    units = room // unit
    least_loss = np.zeros(units + 1)
    taken = np.zeros((len(groups), units + 1), np.uint8)
    for number, group in enumerate(groups):
        before, least_loss = least_loss, np.full(units + 1, np.inf)
        order = sorted(range(len(group)), key=lambda place: (group[place].bytes, place))
        for place in order:
            width = -(-extra[number][place] // unit)
            if width > units:
                continue
            losses = before[: units + 1 - width] + group[place].loss
            better = losses < least_loss[width:]
            least_loss[width:][better] = losses[better]
            taken[number, width:][better] = place
    chosen, left = [], units
    for number in reversed(range(len(groups))):
        place = int(taken[number, left])
        chosen.append(groups[number][place])
        left -= -(-extra[number][place] // unit)
    return chosen[::-1]
