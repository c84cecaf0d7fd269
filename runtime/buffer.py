"""Memory that graphs read and write by its address, on the CPU or a CUDA device."""

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest import Provider
from edgeformer.runtime.session import onnxruntime


class Buffer:
    """An array of fixed shape. Its first rows can be bound by themselves, and any one of them.

    value: what a graph gave and is kept; None for new memory, uninitialised: what is never written is never taken.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic], provider: Provider, value: Any = None):
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._provider = provider
        if value is None:
            value = onnxruntime().OrtValue.ortvalue_from_shape_and_type(shape, dtype, provider, 0)
        self._value = value

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def bind_input(self, binding: Any, name: str, row: int | None = None) -> None:
        """Let a graph read it, or one row of it."""
        binding.bind_input(name, self._provider, 0, self.dtype, *self._part(row))

    def bind_output(self, binding: Any, name: str, row: int | None = None) -> None:
        """Let a graph write it, or one row of it."""
        binding.bind_output(name, self._provider, 0, self.dtype, *self._part(row))

    def _part(self, row: int | None) -> tuple[tuple[int, ...], int]:
        """Shape and address."""
        if row is None:
            return self.shape, self._value.data_ptr()
        shape = (1, *self.shape[1:])
        return shape, self._value.data_ptr() + row * math.prod(shape) * self.dtype.itemsize

    def host(self) -> NDArray[Any]:
        """The content: itself on the CPU, a copy of what is on a device."""
        if self._provider != "cpu":
            copy: NDArray[Any] = self._value.numpy()
            return copy
        memory: Any = (ctypes.c_byte * self.nbytes).from_address(self._value.data_ptr())
        memory.owner = self._value  # which frees it
        return np.frombuffer(memoryview(memory), self.dtype).reshape(self.shape)

    def put(self, content: NDArray[Any]) -> None:
        """Overwrite everything, with what `host` gave and was changed, or another array of this shape."""
        if self._provider == "cpu":
            own = self.host()
            if not np.shares_memory(own, content):
                own[...] = content
        else:
            self._value.update_inplace(np.ascontiguousarray(content))
