"""The adapters of rows: the inputs of the adapter graph with one entry for each row.

    SITE.lora_A [rows, in, rank], SITE.lora_B [rows, rank, out]      a row without an adapter has zeros

A row's adapter is written into its entries when its request begins, so that a step copies nothing.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.steps.adapters import AdaptedSession, Tensors


class RowAdapters:
    """Adapters by row.

    adapters: the inputs of each for one row, by its name. open_session: returns the session of the adapter graph, when
    that is first needed. bytes_per_row: memory that each row takes once an adapter has run in it.
    """

    def __init__(self, adapters: Mapping[str, Tensors], rows: int, open_session: Callable[[], Any]):
        self._adapters = adapters
        self._open_session = open_session
        self._sessions: dict[str, AdaptedSession] = {}  # for one row by itself
        self.names: list[str | None] = [None] * rows
        shapes: dict[str, tuple[int, ...]] = {}
        for tensors in self._adapters.values():
            for name, tensor in tensors.items():
                shapes[name] = tuple(map(max, tensor.shape, shapes.get(name, tensor.shape)))
        dtypes = {name: tensor.dtype for tensors in self._adapters.values() for name, tensor in tensors.items()}
        # The system gives memory for zeros where they are first written.
        self._rows: dict[str, NDArray[Any]] = {
            name: np.zeros((rows, *shape[1:]), dtypes[name]) for name, shape in shapes.items()
        }
        self.bytes_per_row = sum(dtypes[name].itemsize * math.prod(shape) for name, shape in shapes.items())

    def set(self, row: int, name: str | None) -> None:
        """Give a row an adapter, or none."""
        if name == self.names[row]:
            return
        self.names[row] = name
        for site, rows in self._rows.items():
            rows[row] = 0
            if name is not None:
                tensor = self._adapters[name][site][0]
                rows[row][tuple(map(slice, tensor.shape))] = tensor

    def session_of(self, row: int) -> AdaptedSession | None:
        """Return a session for one row by itself; None where the row has no adapter."""
        name = self.names[row]
        if name is None:
            return None
        if name not in self._sessions:
            self._sessions[name] = AdaptedSession(self._open_session(), self._adapters[name])
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
