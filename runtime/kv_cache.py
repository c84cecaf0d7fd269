"""The static key/value cache: one buffer per layer and part, allocated once, updated in place.

    key of layer i    [ row 0 | row 1 | … ]     a row: [K, C, D], of which the first `length` tokens are valid
    value of layer i  [ row 0 | row 1 | … ]

The graph's past and present are bound to the same buffer, so a step moves only what is new. A single row is a view of
the buffers, bound by address.

A layer that sees no further than a window has a buffer of that many tokens, C = W, whatever the capacity of the others:
the attention op evicts what left the window, and keeps the last min(length, W) tokens in order from slot 0.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract import CacheGeometry, past_names, present_names
from edgeformer.errors import RequestError
from edgeformer.manifest import Provider
from edgeformer.runtime.session import onnxruntime


class KVCache:
    """Buffers for `batch_size` rows of up to `capacity` tokens, on the CPU or a CUDA device.

    windows: of each layer, None where it keeps all tokens. bytes: what a full cache takes.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        dtype: type[np.generic],
        batch_size: int,
        capacity: int,
        provider: Provider = "cpu",
        windows: Sequence[int | None] = (),
    ):
        self.batch_size = batch_size
        self.capacity = capacity
        self._geometry = geometry
        self._dtype = np.dtype(dtype)
        self._device = provider
        self._slots = [window or capacity for window in windows or [None] * geometry.num_layers]
        # A window's buffer may be longer than this request ever gets; memory that is never written is never taken.
        self.bytes = geometry.elements(batch_size, capacity, windows) * self._dtype.itemsize
        available = _available_memory() if provider == "cpu" else None
        if available is not None and self.bytes > available:
            raise RequestError(
                f"the cache for {batch_size} × {capacity} tokens takes {self.bytes / 1e9:.1f} GB, and "
                f"{available / 1e9:.1f} GB of memory are free. Ask for fewer tokens (max_new_tokens) or rows."
            )
        value = onnxruntime().OrtValue
        # Uninitialised: what is beyond a row's length is never read.
        self._buffers = [
            value.ortvalue_from_shape_and_type(self._shape(layer, batch_size), dtype, provider, 0)
            for layer in range(geometry.num_layers)
            for _ in ("key", "value")
        ]

    def bind(self, binding: Any, row: int | None = None) -> None:
        """Bind past and present of every layer to the whole cache, or to one row of it."""
        rows = self.batch_size if row is None else 1
        names = zip(past_names(self._geometry), present_names(self._geometry), self._buffers, strict=True)
        for index, (past, present, buffer) in enumerate(names):
            shape = self._shape(index // 2, rows)
            address = buffer.data_ptr() + (row or 0) * math.prod(shape[1:]) * self._dtype.itemsize
            binding.bind_input(past, self._device, 0, self._dtype, shape, address)
            binding.bind_output(present, self._device, 0, self._dtype, shape, address)

    def _shape(self, layer: int, rows: int) -> tuple[int, int, int, int]:
        return (rows, self._geometry.num_kv_heads, self._slots[layer], self._geometry.head_dim)

    def fill(self, value: float) -> None:
        """Overwrite every element; parity checks fill with NaN to prove that nothing unwritten is read."""
        for buffer in self._buffers:
            buffer.update_inplace(np.full(buffer.shape(), value, self._dtype))

    def read(self, length: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Copies of keys and values of each layer, of the last min(length, window) of `length` tokens: [B, K, …, D]."""
        arrays = [buffer.numpy()[:, :, :length] for buffer in self._buffers]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def write(self, length: int, past: Callable[[int], tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """Overwrite the first `length` tokens of each layer with keys and values [B, K, length, D]."""
        for layer in range(self._geometry.num_layers):
            kept = min(length, self._slots[layer])
            for part, new in enumerate(past(layer)):
                buffer = self._buffers[2 * layer + part]
                content = buffer.numpy()
                content[:, :, :kept] = new[:, :, length - kept :]
                buffer.update_inplace(content)


def _available_memory() -> int | None:
    """Bytes that can be allocated without swapping, where the system says so."""
    if not os.path.exists("/proc/meminfo"):
        return None
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024
