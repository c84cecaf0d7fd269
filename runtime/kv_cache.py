"""The static key/value cache: one buffer for the keys and one for the values of each layer, updated in place.

    key of layer i    [ row 0 | row 1 | … ]     a row: [K, C, D], of which the first `length` tokens are valid
    value of layer i  [ row 0 | row 1 | … ]

K is the number of kv heads, C the capacity, D the head dim. The graph's past and present are bound to the same buffer,
so a step writes only the new tokens. A single row is bound by its address.

A layer with an attention window has a buffer of that many tokens, C = W, whatever the capacity of the others: the
attention op evicts tokens that left the window, and keeps the last min(length, W) tokens in order from slot 0.
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

    windows: of each layer, in tokens; None where it keeps all. prefix: the beginning of the tensors' names in a graph
    with several caches (`decoder.`). bytes: size of a full cache. Raises RequestError where these bytes are not free.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        dtype: type[np.generic],
        batch_size: int,
        capacity: int,
        provider: Provider = "cpu",
        windows: Sequence[int | None] = (),
        prefix: str = "",
    ):
        self.batch_size = batch_size
        self.capacity = capacity
        self._geometry = geometry
        self._prefix = prefix
        self._slots = [window or capacity for window in windows or [None] * geometry.num_layers]
        # The buffer of a window may be longer than this request; the system only provides pages that are written.
        self.bytes = geometry.elements(batch_size, capacity, windows) * np.dtype(dtype).itemsize
        if provider == "cpu":
            check_memory(self.bytes, batch_size, capacity)
        # Uninitialised: slots beyond the length of a row are masked. Some graphs multiply them with zero (see `fill`).
        self._buffers = [
            Buffer((batch_size, geometry.num_kv_heads, slots, geometry.head_dim), dtype, provider)
            for slots in self._slots
            for _ in ("key", "value")
        ]

    def bind(self, binding: Any, row: int | None = None) -> None:
        """Bind past and present of every layer to the whole cache, or to one row of it."""
        names = past_names(self._geometry, self._prefix), present_names(self._geometry, self._prefix)
        for past, present, buffer in zip(*names, self._buffers, strict=True):
            buffer.bind_input(binding, past, row)
            buffer.bind_output(binding, present, row)

    def fill(self, value: float) -> None:
        """Overwrite every element; parity checks fill with NaN to show that no unwritten slot is read."""
        for buffer in self._buffers:
            buffer.put(np.full(buffer.shape, value, buffer.dtype))

    def read(self, length: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return copies of keys and values of each layer, of the last min(length, window) tokens: [B, K, …, D]."""
        arrays = [buffer.host()[:, :, :length].copy() for buffer in self._buffers]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def write(self, length: int, past: Callable[[int], tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """Overwrite the first `length` tokens of each layer; past: layer → keys and values [B, K, length, D]."""
        for layer, slots in enumerate(self._slots):
            kept = min(length, slots)
            for buffer, new in zip(self._buffers[2 * layer : 2 * layer + 2], past(layer), strict=True):
                content = buffer.host()
                content[:, :, :kept] = new[:, :, length - kept :]
                buffer.put(content)

    def reorder(self, parents: NDArray[np.int64], length: int) -> int:
        """Replace every row r by a copy of row parents[r], in place; rows that stay are not touched.

        length: tokens that the rows have. Returns how many bytes were copied.
        """
        return sum(move_rows(buffer, parents, length) for buffer in self._buffers)


def move_rows(buffer: Buffer, parents: NDArray[np.int64], slots: int) -> int:
    """Copy the first slots of row parents[r] of a buffer [B, K, C, D] to every row r; return the bytes copied."""
    moved = np.flatnonzero(parents != np.arange(len(parents)))
    content = buffer.host()
    # Indexing copies the rows that move, because a row may be read after it was overwritten.
    rows = content[parents[moved], :, :slots]
    content[moved, :, :slots] = rows
    buffer.put(content)
    return rows.nbytes


def check_memory(needed: int, batch_size: int, capacity: int) -> None:
    """Raise RequestError if a cache needs more bytes than are free."""
    available = _available_memory()
    if available is not None and needed > available:
        raise RequestError(
            f"the cache for {batch_size} × {capacity} tokens takes {needed / 1e9:.1f} GB, and "
            f"{available / 1e9:.1f} GB of memory are free. Ask for fewer tokens (max_new_tokens) or rows."
        )


def _available_memory() -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not tell."""
    if not os.path.exists("/proc/meminfo"):
        return None
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024
