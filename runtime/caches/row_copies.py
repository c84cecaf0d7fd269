"""Copy rows of several buffers: between rows, to the host, and from it.

On a device one run of a small graph copies a row of all buffers, and no number crosses to the host that is not wanted.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.sessions.buffer import Buffer, Rows
from edgeformer.runtime.sessions.narrow_floats import FLOAT8, element_type
from edgeformer.runtime.sessions.session import onnxruntime
from edgeformer.runtime.sessions.small_graphs import Node, Value, open_small_graph, write_graph

Array = NDArray[Any]

GROUP_BYTES = 2**28
"""Bytes of buffers that are reordered in one run, which needs as much memory again."""

INT64 = np.dtype(np.int64)


def copied_type(dtype: np.dtype[Any]) -> Any:
    """Return the element type by which graphs here copy a type: bytes for float8, of which Concat has no CUDA kernel.

    Source: the kernels of onnxruntime 1.31 (edgeformer/check/providers/kernels.json), as of Gather and Slice.
    """
    return dtype if dtype == FLOAT8 else element_type(dtype)


class Kind(NamedTuple):
    """The type, the rank and the form of a buffer. per_token: whether axis 2 has slots for tokens."""

    dtype: np.dtype[Any]
    rank: int
    per_token: bool


class RowCopies:
    """Copies rows of buffers [B, …]. on_device: whether small graphs copy them; tests try these on the CPU, too.

    per_token: which buffers have slots for tokens, [B, K, C, …].
    """

    def __init__(self, buffers: Sequence[Buffer], per_token: Sequence[bool], provider: Provider = CPU):
        self._buffers = buffers
        self._kinds = [
            Kind(buffer.dtype, len(buffer.shape), slots) for buffer, slots in zip(buffers, per_token, strict=True)
        ]
        self._provider = provider
        self.on_device = provider.on_device

    def bound(self, rows: Rows) -> tuple[Sequence[Buffer], Rows]:
        """Return the buffers to bind for some rows, and the rows of these."""
        return self._buffers, rows

    def around(self, row: int | None) -> AbstractContextManager[None]:
        """Return what a run of one row is to be in; None for all rows."""
        return nullcontext()

    def read(self, row: int, tokens: int) -> list[Array]:
        """Return the content of a row of each buffer, of the first `tokens` slots where it has slots.

        It is the memory itself on the CPU, and a copy of it on a device.
        """
        slots = [min(tokens, buffer.shape[2]) if kind.per_token else None for buffer, kind in self._pairs()]
        if not self.on_device:
            return [
                buffer.host()[row] if count is None else buffer.host()[row][:, :count]
                for buffer, count in zip(self._buffers, slots, strict=True)
            ]
        session = self._session(read_graph, self._kinds)
        binding, arrays = session.io_binding(), []
        binding.bind_cpu_input("tokens", np.array([tokens], np.int64))
        for place, (buffer, count) in enumerate(zip(self._buffers, slots, strict=True)):
            shape = (1, *buffer.shape[1:]) if count is None else (1, buffer.shape[1], count, *buffer.shape[3:])
            arrays.append(np.empty(shape, buffer.dtype))
            kind = copied_type(buffer.dtype)
            buffer.bind_input(binding, f"from_{place}", row, kind)
            binding.bind_output(f"to_{place}", "cpu", 0, kind, shape, arrays[-1].ctypes.data)
        session.run_with_iobinding(binding)
        return [array[0] for array in arrays]

    def write(self, row: int, arrays: Sequence[Array | None]) -> None:
        """Replace a row of each buffer, or its first slots, by an array; None leaves it as it is."""
        given = [(place, array) for place, array in enumerate(arrays) if array is not None]
        if not self.on_device:
            for place, array in given:
                own = self._buffers[place].host()[row]
                (own[:, : array.shape[1]] if self._kinds[place].per_token else own)[...] = array
            return
        if not given:
            return
        session = self._session(write_row_graph, [self._kinds[place] for place, _ in given])
        binding, kept = session.io_binding(), []
        for index, (place, array) in enumerate(given):
            buffer = self._buffers[place]
            kept.append(np.ascontiguousarray(array)[None])
            new, kind = kept[-1], copied_type(buffer.dtype)
            binding.bind_input(f"new_{index}", "cpu", 0, kind, new.shape, new.ctypes.data)
            buffer.bind_output(binding, f"to_{index}", row, kind)
            if self._kinds[place].per_token:
                buffer.bind_input(binding, f"from_{index}", row, kind)
                binding.bind_cpu_input(f"tokens_{index}", np.array([new.shape[2]], np.int64))
        session.run_with_iobinding(binding)

    def move(self, source: int, target: int) -> None:
        """Replace a row of all buffers on a device by a copy of another one."""
        session = self._session(copy_graph, self._kinds)
        binding = session.io_binding()
        for place, buffer in enumerate(self._buffers):
            kind = copied_type(buffer.dtype)
            buffer.bind_input(binding, f"from_{place}", source, kind)
            buffer.bind_output(binding, f"to_{place}", target, kind)
        session.run_with_iobinding(binding)

    def reorder(self, parents: NDArray[np.int64]) -> int:
        """Replace every row r < len(parents) on a device by a copy of row parents[r]; return the bytes copied.

        A row may be read after it was written, so that rows are copied elsewhere first: those of some buffers at once.
        """
        shrink = None
        if self._provider.on_device:  # the memory of the copies is for others then
            shrink = onnxruntime().RunOptions()
            shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
        for places in self._groups():
            kinds = [self._kinds[place] for place in places]
            gather, copy = self._session(gather_graph, kinds), self._session(copy_graph, kinds)
            binding, back = gather.io_binding(), copy.io_binding()
            binding.bind_cpu_input("rows", np.ascontiguousarray(parents, np.int64))
            for index, place in enumerate(places):
                self._buffers[place].bind_input(binding, f"from_{index}", kind=copied_type(kinds[index].dtype))
                binding.bind_output(f"to_{index}", self._provider.name)
            gather.run_with_iobinding(binding, shrink)
            for index, (place, value) in enumerate(zip(places, binding.get_outputs(), strict=True)):
                back.bind_ortvalue_input(f"from_{index}", value)
                kind = copied_type(kinds[index].dtype)
                self._buffers[place].bind_output(back, f"to_{index}", range(len(parents)), kind)
            copy.run_with_iobinding(back)
        return sum(buffer.nbytes // buffer.shape[0] * len(parents) for buffer in self._buffers)

    def _groups(self) -> Iterator[list[int]]:
        """Yield the places of buffers of up to GROUP_BYTES together, or of a single one."""
        group: list[int] = []
        for place, buffer in enumerate(self._buffers):
            if group and sum(self._buffers[each].nbytes for each in group) + buffer.nbytes > GROUP_BYTES:
                yield group
                group = []
            group.append(place)
        yield group

    def _pairs(self) -> Iterator[tuple[Buffer, Kind]]:
        return zip(self._buffers, self._kinds, strict=True)

    def _session(self, graph: "Callable[[tuple[Kind, ...]], bytes]", kinds: Sequence[Kind]) -> Any:
        return _session(graph, tuple(kinds), self._provider)


@cache
def _session(graph: Callable[[tuple[Kind, ...]], bytes], kinds: tuple[Kind, ...], provider: Provider) -> Any:
    """Return the session of a graph for buffers of these kinds, which this process opens once."""
    return open_small_graph(graph(kinds), provider)


def copy_graph(kinds: Sequence[Kind]) -> bytes:
    """Return the model: from_0, from_1, … → copies of them, to_0, to_1, …."""
    nodes = [Node("Identity", [f"from_{place}"], [f"to_{place}"]) for place in range(len(kinds))]
    return write_graph(nodes, _values("from", kinds), _values("to", kinds))


def gather_graph(kinds: Sequence[Kind]) -> bytes:
    """Return the model: rows int64 [R], from_0 [B, …], … → those rows of each, to_0 [R, …], …."""
    nodes = [Node("Gather", [f"from_{place}", "rows"], [f"to_{place}"], axis=0) for place in range(len(kinds))]
    return write_graph(nodes, [Value("rows", INT64, 1), *_values("from", kinds)], _values("to", kinds))


def read_graph(kinds: Sequence[Kind]) -> bytes:
    """Return the model: tokens int64 [1], from_0, … → the first slots of each that has slots, and the others whole."""
    nodes = []
    for place, kind in enumerate(kinds):
        if kind.per_token:
            nodes.append(Node("Slice", [f"from_{place}", "zero", "tokens", "two"], [f"to_{place}"]))
        else:
            nodes.append(Node("Identity", [f"from_{place}"], [f"to_{place}"]))
    numbers = {"zero": 0, "two": 2}
    return write_graph(nodes, [Value("tokens", INT64, 1), *_values("from", kinds)], _values("to", kinds), numbers)


def write_row_graph(kinds: Sequence[Kind]) -> bytes:
    """Return the model: new_0, … → to_0, …; behind the slots of new_0 come those of from_0 from tokens_0 on."""
    nodes, inputs = [], _values("new", kinds)
    for place, kind in enumerate(kinds):
        if not kind.per_token:
            nodes.append(Node("Identity", [f"new_{place}"], [f"to_{place}"]))
            continue
        inputs += [Value(f"from_{place}", kind.dtype, kind.rank), Value(f"tokens_{place}", INT64, 1)]
        nodes.append(Node("Slice", [f"from_{place}", f"tokens_{place}", "end", "two"], [f"rest_{place}"]))
        nodes.append(Node("Concat", [f"new_{place}", f"rest_{place}"], [f"to_{place}"], axis=2))
    return write_graph(nodes, inputs, _values("to", kinds), {"end": 2**62, "two": 2})


def _values(name: str, kinds: Sequence[Kind]) -> list[Value]:
    return [Value(f"{name}_{place}", kind.dtype, kind.rank) for place, kind in enumerate(kinds)]
