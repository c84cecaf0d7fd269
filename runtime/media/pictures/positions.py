"""Positions of the tokens of a prompt with pictures, where positions have axes: time, height, width (M-RoPE).

    token      a   b   ▣   ▣   ▣   ▣   ▣   ▣   c   d          ▣: squares of a picture of 2 rows and 3 columns
    time       0   1   2   2   2   2   2   2   5   6
    height     0   1   2   2   2   3   3   3   5   6
    width      0   1   2   3   4   2   3   4   5   6          behind it, positions go on from the largest

Attention sees differences of positions alone. So a prompt may begin at any: the runtime lets it begin so late that text
behind the last picture stands at its slots of the cache, where graphs of text expect it (`shift`).
Source: transformers' Qwen2VLModel.get_rope_index.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AXES = 3


class PictureSpan(NamedTuple):
    """Where the squares of a picture stand in a prompt. start: of the first one; rows, columns: of squares."""

    start: int
    rows: int
    columns: int

    @property
    def end(self) -> int:
        """Return the place behind the last square."""
        return self.start + self.rows * self.columns

    @property
    def saved(self) -> int:
        """Return how many positions fewer it takes than it has squares."""
        return self.rows * self.columns - max(self.rows, self.columns)


def picture_spans(
    tokens: Sequence[int] | NDArray[np.int64], placeholder: int, grids: Sequence[tuple[int, int]]
) -> list[PictureSpan]:
    """Return the spans of the pictures of an expanded prompt; grids: their rows and columns."""
    places = np.flatnonzero(np.asarray(tokens) == placeholder)
    found, before = [], 0
    for rows, columns in grids:
        found.append(PictureSpan(int(places[before]), rows, columns))
        before += rows * columns
    return found


def positions_of(length: int, spans: Sequence[PictureSpan]) -> NDArray[np.int64]:
    """Return the positions of a prompt of so many tokens, int64 [3, length]."""
    positions = np.tile(np.arange(length), (AXES, 1))
    for span in spans:
        row, column = np.divmod(np.arange(span.rows * span.columns), span.columns)
        first = positions[0, span.start]
        positions[:, span.start : span.end] = first + np.stack((np.zeros_like(row), row, column))
        positions[:, span.end :] -= span.saved
    return positions


def shift(spans: Sequence[PictureSpan]) -> int:
    """Return by how much the positions behind the last picture are less than the places in the prompt."""
    return sum(span.saved for span in spans)
