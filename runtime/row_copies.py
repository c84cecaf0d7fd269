"""Copy rows of several buffers: between rows, to the host, and from it.

On a device one run of a small graph copies a row of all buffers, and no number crosses to the host that is not wanted.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest_parts import Provider
from edgeformer.runtime.bfloat16 import element_type
from edgeformer.runtime.buffer import Buffer
from edgeformer.runtime.small_graphs import Node, Value, open_small_graph, write_graph

Array = NDArray[Any]


class RowCopies:
    """Copies rows of buffers [B, …]. on_device: whether small graphs copy them; tests try these on the CPU, too."""

    def __init__(self, buffers: Sequence[Buffer], provider: Provider):
        self._buffers = buffers
        self._provider = provider
        self.on_device = provider != "cpu"

    def read(self, row: int) -> list[Array]:
        """Return the content of a row of each buffer: the memory itself on the CPU, a copy of it on a device."""
        if not self.on_device:
            return [buffer.host()[row] for buffer in self._buffers]
        arrays = [np.empty((1, *buffer.shape[1:]), buffer.dtype) for buffer in self._buffers]
        session = self._session(copy_graph)
        binding = session.io_binding()
        for place, (buffer, array) in enumerate(zip(self._buffers, arrays, strict=True)):
            buffer.bind_input(binding, f"from_{place}", row)
            kind = element_type(array.dtype)
            binding.bind_output(f"to_{place}", "cpu", 0, kind, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding)
        return [array[0] for array in arrays]

    def write(self, row: int, arrays: Sequence[Array]) -> None:
        """Replace a row of each buffer by arrays, which may be what `read` returned, changed."""
        if not self.on_device:
            for buffer, array in zip(self._buffers, arrays, strict=True):
                own = buffer.host()[row]
                if not np.shares_memory(own, array):
                    own[...] = array
            return
        session = self._session(copy_graph)
        binding, kept = session.io_binding(), [np.ascontiguousarray(array)[None] for array in arrays]
        for place, (buffer, array) in enumerate(zip(self._buffers, kept, strict=True)):
            kind = element_type(array.dtype)
            binding.bind_input(f"from_{place}", "cpu", 0, kind, array.shape, array.ctypes.data)
            buffer.bind_output(binding, f"to_{place}", row)
        session.run_with_iobinding(binding)

    def move(self, source: int, target: int) -> None:
        """Replace a row of all buffers on a device by a copy of another one."""
        session = self._session(copy_graph)
        binding = session.io_binding()
        for place, buffer in enumerate(self._buffers):
            buffer.bind_input(binding, f"from_{place}", source)
            buffer.bind_output(binding, f"to_{place}", target)
        session.run_with_iobinding(binding)

    def reorder(self, parents: NDArray[np.int64]) -> int:
        """Replace every row r < len(parents) on a device by a copy of row parents[r]; return the bytes copied.

        A row may be read after it was written, so that all are copied elsewhere first.
        """
        moved, session = self._session(gather_graph), self._session(copy_graph)
        binding = moved.io_binding()
        binding.bind_cpu_input("rows", np.ascontiguousarray(parents, np.int64))
        for place, buffer in enumerate(self._buffers):
            buffer.bind_input(binding, f"from_{place}")
            binding.bind_output(f"to_{place}", self._provider)
        moved.run_with_iobinding(binding)
        back = session.io_binding()
        for place, (buffer, value) in enumerate(zip(self._buffers, binding.get_outputs(), strict=True)):
            back.bind_ortvalue_input(f"from_{place}", value)
            buffer.bind_output(back, f"to_{place}", range(len(parents)))
        session.run_with_iobinding(back)
        return sum(buffer.nbytes // buffer.shape[0] * len(parents) for buffer in self._buffers)

    def _session(self, graph: Any) -> Any:
        return _session(graph, tuple((buffer.dtype, len(buffer.shape)) for buffer in self._buffers), self._provider)


Kinds = tuple[tuple[np.dtype[Any], int], ...]
"""The type and the rank of each buffer."""


@cache
def _session(graph: Any, kinds: Kinds, provider: Provider) -> Any:
    """Return the session of a graph for buffers of these kinds, which this process opens once."""
    return open_small_graph(graph(kinds), provider)


def copy_graph(kinds: Kinds) -> bytes:
    """Return the model: from_0, from_1, … → copies of them, to_0, to_1, …."""
    nodes = [Node("Identity", [f"from_{place}"], [f"to_{place}"]) for place in range(len(kinds))]
    return write_graph(nodes, _values("from", kinds), _values("to", kinds))


def gather_graph(kinds: Kinds) -> bytes:
    """Return the model: rows int64 [R], from_0 [B, …], … → those rows of each, to_0 [R, …], …."""
    nodes = [Node("Gather", [f"from_{place}", "rows"], [f"to_{place}"], axis=0) for place in range(len(kinds))]
    return write_graph(nodes, [Value("rows", np.dtype(np.int64), 1), *_values("from", kinds)], _values("to", kinds))


def _values(name: str, kinds: Kinds) -> list[Value]:
    return [Value(f"{name}_{place}", *kind) for place, kind in enumerate(kinds)]
