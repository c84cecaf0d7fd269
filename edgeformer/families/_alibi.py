"""Slopes of ALiBi, which all families compute in the same way.

Source: arXiv 2108.12409, section 3, and its reference code for numbers of heads that are no power of two.
"""

import math


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Return 2^(−8/n), 2^(−16/n) … 2^(−8) for the largest power of two n ≤ num_heads, then slopes between these."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-4 * step / power) for step in range(1, 2 * power, 2)]
    return tuple(slopes + between)[:num_heads]
