"""Rows of requests that have ended: they keep what they hold until a request needs the row, or its memory.

    row 0   running
    row 1   running
    row 2   free
    row 3   held      "You are a … What is … It is …"      a prompt that goes on behind this takes the row

Such a prompt copies nothing. One that only begins like the text of a row, held or running, copies that beginning from
row to row, and one that begins with a kept prefix (`PrefixCache`) copies it from there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.prefixes.prefix_cache import SHORTEST
from edgeformer.runtime.steps.runner import StepRunner


@dataclass(frozen=True)
class HeldRow:
    """Tokens int64 [T] of a row, their kind (`DecodeGraph.kind_of`), and the bytes of memory that it takes."""

    tokens: NDArray[np.int64]
    kind: str
    bytes: int


class HeldRows:
    """The rows that hold something and that no request has. bytes: that all of them take."""

    def __init__(self) -> None:
        self.bytes = 0
        self._rows: OrderedDict[int, HeldRow] = OrderedDict()  # the one that was held first comes first

    def hold(self, place: int, row: HeldRow) -> None:
        """Add a row."""
        self.forget(place)
        self._rows[place] = row
        self.bytes += row.bytes

    def forget(self, place: int) -> HeldRow | None:
        """Take a row out, and return it; None if it is not held."""
        row = self._rows.pop(place, None)
        self.bytes -= 0 if row is None else row.bytes
        return row

    def __iter__(self) -> Iterator[tuple[int, HeldRow]]:
        """Iterate over the places and the rows."""
        return iter(self._rows.items())

    def find(
        self, decoder: StepRunner, places: Iterable[int], prompt: Sequence[int], kind: str, most_bytes: int
    ) -> tuple[int, int]:
        """Return the place among `places` of the row that holds most of a prompt, and how many tokens; (-1, 0) if none.

        At least one token of the prompt is left to run. A row of which less than half would be used is left for the
        text that it holds, and one of more than `most_bytes` does not fit.
        """
        tokens = np.asarray(prompt, np.int64)
        best = -1, 0
        for place in places:
            row = self._rows.get(place)
            if row is None or row.kind != kind or row.bytes > most_bytes:
                continue
            length = decoder.graph.prefix_end(tokens, min(common_length(row.tokens, tokens), len(tokens) - 1))
            used = length >= SHORTEST and len(row.tokens) < 2 * length
            if used and length > best[1] and (length == len(row.tokens) or decoder.can_cut(len(row.tokens))):
                best = place, length
        return best

    def least_useful(self, places: Iterable[int]) -> int:
        """Return the first of some places that holds nothing; if all of them do, the one that was held first."""
        places = list(places)
        order = {place: index for index, place in enumerate(self._rows, 1)}
        return min(places, key=lambda place: order.get(place, 0))

    def release(self, most_bytes: int, release: Callable[[int, HeldRow], None]) -> None:
        """Release the rows that were held first, until the rest take at most `most_bytes`."""
        while self._rows and self.bytes > most_bytes:
            place, row = self._rows.popitem(last=False)
            self.bytes -= row.bytes
            release(place, row)


def common_length(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Return how many tokens two texts begin with alike."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
