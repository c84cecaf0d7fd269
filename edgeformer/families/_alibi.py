"""The slopes of attention with linear biases, which every family that has them computes alike.

Source: arXiv 2108.12409, section 3, and its reference code for numbers of heads that are no power of two.
"""

import math


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """2^(−8/n), 2^(−16/n) … 2^(−8) for the largest power of two n ≤ H; further heads have slopes between these."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-4 * step / power) for step in range(1, 2 * power, 2)]
    return tuple(slopes + between)[:num_heads]
