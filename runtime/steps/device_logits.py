"""Read from logits on a device no more than is needed: those of one token, or the most likely tokens."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.sessions.buffer import Buffer
from edgeformer.runtime.sessions.pinned_memory import HostMemory
from edgeformer.runtime.sessions.small_graphs import Node, Value, open_small_graph, write_graph
from edgeformer.runtime.steps.memory import Candidates

Array = NDArray[Any]

MOST_CANDIDATES = 256
"""Tokens that a device chooses at most; for more, the logits of all tokens are copied."""


class DeviceLogits:
    """Reads logits of a type from a device. On the CPU it does the same, for tests."""

    def __init__(self, dtype: np.dtype[Any], provider: Provider = CPU):
        self._dtype = dtype
        self._all = open_small_graph(all_graph(dtype), provider)
        self._row = open_small_graph(row_graph(dtype), provider)
        self._most_likely = open_small_graph(candidates_graph(dtype), provider)

    def all(self, logits: Buffer, rows: range, host: HostMemory) -> Array:
        """Return rows of logits [B, 1, V] as an array [n, V] in memory of the host, which the next call overwrites."""
        binding, found = self._all.io_binding(), host.array("logits", (len(rows), 1, logits.shape[2]), self._dtype)
        logits.bind_input(binding, "logits", rows)
        binding.bind_output("copy", "cpu", 0, found.dtype, found.shape, found.ctypes.data)
        self._all.run_with_iobinding(binding)
        return found[:, 0]

    def row(self, logits: Any, place: int) -> Array:
        """Return the logits of one token [V] of a value [1, S, V]."""
        binding = self._row.io_binding()
        binding.bind_ortvalue_input("logits", logits)
        binding.bind_cpu_input("place", np.array([place], np.int64))
        found = np.empty((1, 1, logits.shape()[-1]), self._dtype)
        binding.bind_output("row", "cpu", 0, found.dtype, found.shape, found.ctypes.data)
        self._row.run_with_iobinding(binding)
        return found[0, 0]

    def candidates(self, logits: Buffer, rows: range, count: int, host: HostMemory) -> list[Candidates]:
        """Return the `count` most likely tokens of each row of logits [B, 1, V]; V is larger than `count`.

        host: memory that they come by.
        """
        # One more token says whether others are as likely as the last of them.
        values, ids = self._likeliest(logits, rows, count + 1, host)
        least = values[:, count - 1]
        if (least == values[:, count]).any():
            return list(map(_at_least, self.all(logits, rows, host), least))
        order = np.argsort(ids[:, :count], axis=1)
        return [Candidates(row[places], found[places]) for row, found, places in zip(ids, values, order, strict=True)]

    def _likeliest(self, logits: Buffer, rows: range, count: int, host: HostMemory) -> tuple[Array, NDArray[np.int64]]:
        """Return the largest logits and their ids [B, count], the largest first."""
        binding = self._most_likely.io_binding()
        logits.bind_input(binding, "logits", rows)
        binding.bind_cpu_input("count", np.array([count], np.int64))
        shape = (len(rows), 1, count)
        values, ids = host.array("values", shape, self._dtype), host.array("ids", shape, np.int64)
        for name, array in (("values", values), ("ids", ids)):
            binding.bind_output(name, "cpu", 0, array.dtype, shape, array.ctypes.data)
        self._most_likely.run_with_iobinding(binding)
        return values[:, 0], ids[:, 0]


@cache
def device_logits(dtype: np.dtype[Any], provider: Provider = CPU) -> DeviceLogits:
    """Return the reader of this type, whose sessions this process opens once."""
    return DeviceLogits(dtype, provider)


def all_graph(dtype: np.dtype[Any]) -> bytes:
    """Return the model: logits [B, S, V] → a copy of them."""
    return write_graph([Node("Identity", ["logits"], ["copy"])], [Value("logits", dtype, 3)], [Value("copy", dtype, 3)])


def row_graph(dtype: np.dtype[Any]) -> bytes:
    """Return the model: logits [B, S, V], place int64 [1] → the logits at that place of every text, `row` [B, 1, V]."""
    return write_graph(
        [Node("Gather", ["logits", "place"], ["row"], axis=1)],
        [Value("logits", dtype, 3), Value("place", np.dtype(np.int64), 1)],
        [Value("row", dtype, 3)],
    )


def candidates_graph(dtype: np.dtype[Any]) -> bytes:
    """Return the model: logits [B, S, V], count int64 [1] → the largest, `values` and `ids` [B, S, count]."""
    ids = np.dtype(np.int64)
    return write_graph(
        [Node("TopK", ["logits", "count"], ["values", "ids"], axis=-1)],
        [Value("logits", dtype, 3), Value("count", ids, 1)],
        [Value("values", dtype, 3), Value("ids", ids, 3)],
    )


def _at_least(logits: Array, least: Any) -> Candidates:
    """Return the tokens whose logits [V] are not below a number."""
    ids = np.flatnonzero(~(logits < least))  # not a number is below none
    return Candidates(ids, logits[ids])
