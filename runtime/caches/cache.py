"""The keys, values and states that a graph keeps of its rows: what a `StepRunner` needs of them in either form."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.sessions.buffer import Rows

Array = NDArray[Any]
Content = Sequence[Array | None]
"""One array for each tensor of a cache; None where it has no part in this."""


class Cache(Protocol):
    """The cache of `batch_size` rows of up to `capacity` tokens.

    - bytes: size of a full cache.
    - in_place: whether past and present are one memory that stays where it is, so that a binding can be kept.
    """

    batch_size: int
    capacity: int
    bytes: int
    in_place: bool

    @property
    def reversible_length(self) -> int:
        """Tokens up to which a row forgets its last ones by its length alone; `snapshot` says why not beyond."""

    @property
    def trimmable(self) -> bool:
        """Whether a row of any length can be read back as fewer tokens: no state of a fixed size, no window."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that `read_tokens` returns for each token."""

    def expect(self, row: int, tokens: int) -> None:
        """Take account of the tokens that a row will have at least."""

    def bind(self, binding: Any, rows: Rows = None) -> None:
        """Bind what does not change between runs of all rows, or of some."""

    def over(
        self, binding: Any, new: NDArray[np.bool_], lengths: NDArray[np.int64], row: int | None = None
    ) -> AbstractContextManager[NDArray[np.int64]]:
        """Bind what changes between runs of all rows or one (R); return a context of a run that yields its mask [R, T].

        new: bool [R, S], False at padding. lengths: of the rows, behind the run.
        """

    def read(self, length: int) -> list[tuple[Array, ...]]:
        """Return what each layer keeps of all rows: the first `length` tokens [B, K, length, D], or whole states."""

    def write(self, length: int, past: Callable[[int], Sequence[Array]]) -> None:
        """Replace the content of all rows by `length` tokens. past: layer → its tensors."""

    def row_layout(self, length: int) -> list[tuple[tuple[int, ...], np.dtype[Any], bool]]:
        """Return the shape and type of each tensor of a row of `length` tokens, and whether `read_tokens` has it."""

    def read_tokens(self, row: int, start: int, stop: int) -> Content:
        """Return copies of what tokens of a row added and no later token overwrites: [K, stop - start, D] each."""

    def read_states(self, row: int, length: int) -> Content:
        """Return copies of what later tokens of a row of `length` tokens overwrite."""

    def write_row(self, row: int, pieces: Sequence[Content], states: Content) -> None:
        """Replace the content of a row by what `read_tokens` returned for adjacent pieces, and `read_states` then."""

    def clear_row(self, row: int) -> None:
        """Make a row what it is before its first token."""

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens and the states of a row to another."""

    def release_row(self, row: int) -> None:
        """Give the memory of a row back, where it can be."""

    def reorder(self, parents: NDArray[np.int64], length: int) -> int:
        """Replace every row r by a copy of row parents[r]; return the bytes copied. length: of the longest row."""

    def snapshot(self, row: int | None = None) -> Any:
        """Return what `restore` needs to take back later tokens of one row, or of all."""

    def restore(self, snapshot: Any, row: int | None = None) -> None:
        """Put back what `snapshot` returned."""
