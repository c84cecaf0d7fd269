"""The adapters of rows: the inputs of the adapter graph with one entry for each row.

    SITE.lora_A [rows, in, rank], SITE.lora_B [rows, rank, out]      a row without an adapter has zeros

A row's adapter is written into its entries when its request begins, so that a step copies nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.steps.adapters import AdaptedSession, Tensors

MOST_SESSIONS = 64
"""Adapters and sums of them that keep the inputs of a row by itself."""


class RowAdapters:
    """Adapters by row.

    read: returns the inputs of an adapter, or of a sum of several, for one row. names: the adapters of the bundle, for
    the largest of which there is memory from the start. open_session: returns the session of the adapter graph, when
    that is first needed.
    """

    def __init__(
        self, read: Callable[[str], Tensors], names: Iterable[str], rows: int, open_session: Callable[[], Any]
    ):
        self._read = read
        self._open_session = open_session
        self._sessions: dict[str, AdaptedSession] = {}  # for one row by itself
        self.names: list[str | None] = [None] * rows
        self._rows: dict[str, NDArray[Any]] = {}
        for name in names:
            self._make_room(read(name))

    @property
    def bytes_per_row(self) -> int:
        """Memory that each row takes once an adapter has run in it."""
        return sum(entries[0].nbytes for entries in self._rows.values())

    def set(self, row: int, name: str | None) -> bool:
        """Give a row an adapter, or none.

        Returns whether the inputs of all rows have moved, since a sum of several has a larger rank than any before:
        what is bound to them must then be bound anew.
        """
        if name == self.names[row]:
            return False
        tensors = {} if name is None else self._read(name)
        moved = self._make_room(tensors)
        self.names[row] = name
        for site, entries in self._rows.items():
            entries[row] = 0
            if name is not None:
                tensor = tensors[site][0]
                entries[row][tuple(map(slice, tensor.shape))] = tensor
        return moved

    def _make_room(self, tensors: Tensors) -> bool:
        """Enlarge the entries of all rows to what an adapter takes; return whether any was too small."""
        moved = False
        for site, tensor in tensors.items():
            entries = self._rows.get(site)
            old = tensor.shape[1:] if entries is None else entries.shape[1:]
            shape = tuple(map(max, tensor.shape[1:], old))
            if entries is not None and shape == old:
                continue
            # The system gives memory for zeros where they are first written.
            larger = self._rows[site] = np.zeros((len(self.names), *shape), tensor.dtype)
            moved = True
            if entries is not None:
                for row in (row for row, name in enumerate(self.names) if name is not None):
                    larger[row][tuple(map(slice, old))] = entries[row]
        return moved

    def session_of(self, row: int) -> AdaptedSession | None:
        """Return a session for one row by itself; None where the row has no adapter."""
        name = self.names[row]
        if name is None:
            return None
        if name not in self._sessions:
            if len(self._sessions) >= MOST_SESSIONS:
                self._sessions.clear()
            self._sessions[name] = AdaptedSession(self._open_session(), self._read(name))
        return self._sessions[name]

    def any_of(self, rows: range) -> bool:
        """Return whether any of some adjacent rows has an adapter."""
        return any(self.names[rows.start : rows.stop])

    def session_of_rows(self, rows: range) -> AdaptedSession | None:
        """Return a session for adjacent rows; None where none of them has an adapter."""
        if not self.any_of(rows):
            return None
        entries = {site: entries[rows.start : rows.stop] for site, entries in self._rows.items()}
        return AdaptedSession(self._open_session(), entries)
