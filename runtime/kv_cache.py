"""The static key/value cache: one buffer per layer and part, allocated once, updated in place.

    key of layer i    [ row 0 | row 1 | … ]     a row: [K, C, D], of which the first `length` tokens are valid
    value of layer i  [ row 0 | row 1 | … ]

The graph's past and present are bound to the same buffer, so a step moves only what is new. A single row is a view of
the buffers, bound by address.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract import CacheGeometry, past_names, present_names
from edgeformer.errors import RequestError
from edgeformer.manifest import Provider
from edgeformer.runtime.session import onnxruntime


class KVCache:
    """Buffers for `batch_size` rows of up to `capacity` tokens, on the CPU or a CUDA device."""

    def __init__(
        self,
        geometry: CacheGeometry,
        dtype: type[np.generic],
        batch_size: int,
        capacity: int,
        provider: Provider = "cpu",
    ):
        self.batch_size = batch_size
        self.capacity = capacity
        self._geometry = geometry
        self._dtype = np.dtype(dtype)
        self._device = provider
        self.bytes = geometry.elements(batch_size, capacity) * self._dtype.itemsize
        available = _available_memory() if provider == "cpu" else None
        if available is not None and self.bytes > available:
            raise RequestError(
                f"the cache for {batch_size} × {capacity} tokens takes {self.bytes / 1e9:.1f} GB, and "
                f"{available / 1e9:.1f} GB of memory are free. Ask for fewer tokens (max_new_tokens) or rows."
            )
        shape = (batch_size, geometry.num_kv_heads, capacity, geometry.head_dim)
        value = onnxruntime().OrtValue
        # Uninitialised: what is beyond a row's length is never read.
        self._buffers = [
            value.ortvalue_from_shape_and_type(shape, dtype, provider, 0) for _ in range(2 * geometry.num_layers)
        ]

    def bind(self, binding: Any, row: int | None = None) -> None:
        """Bind past and present of every layer to the whole cache, or to one row of it."""
        geometry = self._geometry
        rows = self.batch_size if row is None else 1
        shape = (rows, geometry.num_kv_heads, self.capacity, geometry.head_dim)
        offset = (row or 0) * geometry.num_kv_heads * self.capacity * geometry.head_dim * self._dtype.itemsize
        names = zip(past_names(geometry), present_names(geometry), self._buffers, strict=True)
        for past, present, buffer in names:
            address = buffer.data_ptr() + offset
            binding.bind_input(past, self._device, 0, self._dtype, shape, address)
            binding.bind_output(present, self._device, 0, self._dtype, shape, address)

    def fill(self, value: float) -> None:
        """Overwrite every element; parity checks fill with NaN to prove that nothing unwritten is read."""
        for buffer in self._buffers:
            buffer.update_inplace(np.full(buffer.shape(), value, self._dtype))

    def read(self, length: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Copies of keys and values of each layer up to `length` tokens: [B, K, length, D]."""
        arrays = [buffer.numpy()[:, :, :length] for buffer in self._buffers]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def write(self, length: int, past: Callable[[int], tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """Overwrite the first `length` tokens of each layer with keys and values [B, K, length, D]."""
        for layer in range(self._geometry.num_layers):
            for part, new in enumerate(past(layer)):
                buffer = self._buffers[2 * layer + part]
                content = buffer.numpy()
                content[:, :, :length] = new
                buffer.update_inplace(content)


def _available_memory() -> int | None:
    """Bytes that can be allocated without swapping, where the system says so."""
    if not os.path.exists("/proc/meminfo"):
        return None
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024
