"""The static key/value cache: one buffer per layer and part, allocated once, updated in place.

    key of layer i    [ row 0 | row 1 | … ]     a row: [K, C, D], of which the first `length` tokens are valid
    value of layer i  [ row 0 | row 1 | … ]

The graph's past and present are bound to the same buffer, so a step moves only what is new. A single row is a part of
the buffers, bound by its address.

A layer that sees no further than a window has a buffer of that many tokens, C = W, whatever the capacity of the others:
the attention op evicts what left the window, and keeps the last min(length, W) tokens in order from slot 0.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract import CacheGeometry, past_names, present_names
from edgeformer.errors import RequestError
from edgeformer.manifest import Provider
from edgeformer.runtime.buffer import Buffer


class KVCache:
    """Buffers for `batch_size` rows of up to `capacity` tokens, on the CPU or a CUDA device.

    windows: of each layer, None where it keeps all tokens. part: what its tensors are called in a graph that has
    several (`decoder.`). bytes: what a full cache takes.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        dtype: type[np.generic],
        batch_size: int,
        capacity: int,
        provider: Provider = "cpu",
        windows: Sequence[int | None] = (),
        part: str = "",
    ):
        self.batch_size = batch_size
        self.capacity = capacity
        self._geometry = geometry
        self._part = part
        self._slots = [window or capacity for window in windows or [None] * geometry.num_layers]
        # A window's buffer may be longer than this request ever gets; memory that is never written is never taken.
        self.bytes = geometry.elements(batch_size, capacity, windows) * np.dtype(dtype).itemsize
        if provider == "cpu":
            check_memory(self.bytes, batch_size, capacity)
        # What is beyond a row's length counts for nothing; some graphs multiply it with zero.
        self._buffers = [
            Buffer((batch_size, geometry.num_kv_heads, slots, geometry.head_dim), dtype, provider)
            for slots in self._slots
            for _ in ("key", "value")
        ]

    def bind(self, binding: Any, row: int | None = None) -> None:
        """Bind past and present of every layer to the whole cache, or to one row of it."""
        names = past_names(self._geometry, self._part), present_names(self._geometry, self._part)
        for past, present, buffer in zip(*names, self._buffers, strict=True):
            buffer.bind_input(binding, past, row)
            buffer.bind_output(binding, present, row)

    def fill(self, value: float) -> None:
        """Overwrite every element; parity checks fill with NaN to prove that nothing unwritten is read."""
        for buffer in self._buffers:
            buffer.put(np.full(buffer.shape, value, buffer.dtype))

    def read(self, length: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Copies of keys and values of each layer, of the last min(length, window) of `length` tokens: [B, K, …, D]."""
        arrays = [buffer.host()[:, :, :length].copy() for buffer in self._buffers]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def write(self, length: int, past: Callable[[int], tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """Overwrite the first `length` tokens of each layer with keys and values [B, K, length, D]."""
        for layer, slots in enumerate(self._slots):
            kept = min(length, slots)
            for buffer, new in zip(self._buffers[2 * layer : 2 * layer + 2], past(layer), strict=True):
                content = buffer.host()
                content[:, :, :kept] = new[:, :, length - kept :]
                buffer.put(content)

    def reorder(self, parents: NDArray[np.int64], length: int) -> int:
        """Let every row r hold what row parents[r] held, in place; rows that stay are not touched.

        length: tokens that the rows have. Returns how many bytes were copied.
        """
        return sum(move_rows(buffer, parents, length) for buffer in self._buffers)


def move_rows(buffer: Buffer, parents: NDArray[np.int64], slots: int) -> int:
    """Let every row r of a buffer [B, K, C, D] hold what row parents[r] held in its first slots; return the bytes."""
    moved = np.flatnonzero(parents != np.arange(len(parents)))
    content = buffer.host()
    # A copy of what moves, since a row may be read after it was overwritten.
    rows = content[parents[moved], :, :slots]
    content[moved, :, :slots] = rows
    buffer.put(content)
    return rows.nbytes


def check_memory(needed: int, batch_size: int, capacity: int) -> None:
    """Raise RequestError where a cache takes more bytes than are free."""
    available = _available_memory()
    if available is not None and needed > available:
        raise RequestError(
            f"the cache for {batch_size} × {capacity} tokens takes {needed / 1e9:.1f} GB, and "
            f"{available / 1e9:.1f} GB of memory are free. Ask for fewer tokens (max_new_tokens) or rows."
        )


def _available_memory() -> int | None:
    """Bytes that can be allocated without swapping, where the system says so."""
    if not os.path.exists("/proc/meminfo"):
        return None
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024
