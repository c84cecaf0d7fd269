"""Copies of rows where graphs cannot be bound to any row of a buffer: memory of WebGPU has no addresses, only handles.

Graphs are bound to the first rows of a buffer there. Another row is copied to a buffer of a single row, the stage, the
graph runs over that, and the row is copied back. A cache of a single row needs no stage.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.caches.row_copies import Kind, RowCopies, copied_type, gather_graph
from edgeformer.runtime.sessions.buffer import Buffer, Rows
from edgeformer.runtime.sessions.small_graphs import Node, Value, write_graph

Array = NDArray[Any]


class StagedRows(RowCopies):
    """Copies rows of buffers whose rows have no addresses."""

    def bound(self, rows: Rows) -> tuple[Sequence[Buffer], Rows]:
        """Return the buffers to bind for some rows, and the rows of these: the stage for any but the first ones."""
        if rows is None or rows == 0 or (isinstance(rows, range) and rows.start == 0):
            return self._buffers, range(1) if rows == 0 and not isinstance(rows, range) else rows
        assert isinstance(rows, int), "adjacent rows are bound from the first one on"
        return self._stage, None

    @contextmanager
    def around(self, row: int | None) -> Iterator[None]:
        """Copy a row to the stage before a run that is bound to it, and back behind that."""
        if not row:
            yield
            return
        self._load(row)
        yield
        self._store(row)

    def read(self, row: int, tokens: int) -> list[Array]:
        """Return the content of a row of each buffer, of the first `tokens` slots where it has slots."""
        if row == 0:
            return super().read(row, tokens)
        self._load(row)
        return self._copies.read(0, tokens)

    def write(self, row: int, arrays: Sequence[Array | None]) -> None:
        """Replace a row of each buffer, or its first slots, by an array; None leaves it as it is."""
        if row == 0 or all(each is None for each in arrays):
            super().write(row, arrays)
            return
        self._load(row)
        self._copies.write(0, arrays)
        self._store(row)

    def move(self, source: int, target: int) -> None:
        """Replace a row of all buffers by a copy of another one."""
        self._load(source)
        self._store(target)

    @cached_property
    def _stage(self) -> list[Buffer]:
        return [Buffer((1, *each.shape[1:]), each.dtype.type, self._provider) for each in self._buffers]

    @cached_property
    def _copies(self) -> RowCopies:
        """The copies from and to the stage, whose row is its first."""
        return RowCopies(self._stage, [kind.per_token for kind in self._kinds], self._provider)

    def _load(self, row: int) -> None:
        """Copy a row to the stage."""
        session = self._session(gather_graph, self._kinds)
        binding = session.io_binding()
        binding.bind_cpu_input("rows", np.array([row], np.int64))
        for place, (buffer, one) in enumerate(zip(self._buffers, self._stage, strict=True)):
            buffer.bind_input(binding, f"from_{place}", kind=copied_type(buffer.dtype))
            one.bind_output(binding, f"to_{place}", kind=copied_type(buffer.dtype))
        session.run_with_iobinding(binding)

    def _store(self, row: int) -> None:
        """Copy the stage to a row."""
        session = self._session(scatter_graph, self._kinds)
        binding = session.io_binding()
        binding.bind_cpu_input("row", np.array([[row]], np.int64))
        for place, (buffer, one) in enumerate(zip(self._buffers, self._stage, strict=True)):
            kind = copied_type(buffer.dtype)
            one.bind_input(binding, f"new_{place}", kind=kind)
            buffer.bind_input(binding, f"from_{place}", kind=kind)
            buffer.bind_output(binding, f"to_{place}", kind=kind)
        session.run_with_iobinding(binding)


def scatter_graph(kinds: Sequence[Kind]) -> bytes:
    """Return the model: row int64 [1, 1], from_0, new_0 [1, …], … → to_0, …, which is from_0 with that row replaced.

    Where from_0 and to_0 are one buffer, ScatterND of WebGPU writes the row alone.
    """
    count = range(len(kinds))
    nodes = [Node("ScatterND", [f"from_{place}", "row", f"new_{place}"], [f"to_{place}"]) for place in count]
    given, new, made = (
        [Value(f"{name}_{place}", kind.dtype, kind.rank) for place, kind in enumerate(kinds)]
        for name in ("from", "new", "to")
    )
    return write_graph(nodes, [Value("row", np.dtype(np.int64), 2), *given, *new], made)
