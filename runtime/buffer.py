"""Memory that graphs read and write at a fixed address, on the CPU or a CUDA device."""

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest import Provider
from edgeformer.runtime.session import onnxruntime


class Buffer:
    """An array of fixed shape, of which a graph can be bound to all rows or to a single one.

    value: an OrtValue to keep, such as an output of a graph; None allocates new memory, uninitialised, of which the
    system provides only the pages that are written.
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
        """Bind the buffer, or one row of it, as an input of a graph."""
        binding.bind_input(name, self._provider, 0, self.dtype, *self._shape_and_address(row))

    def bind_output(self, binding: Any, name: str, row: int | None = None) -> None:
        """Bind the buffer, or one row of it, as an output of a graph."""
        binding.bind_output(name, self._provider, 0, self.dtype, *self._shape_and_address(row))

    def _shape_and_address(self, row: int | None) -> tuple[tuple[int, ...], int]:
        """Return the shape and the address of the buffer, or of one row."""
        if row is None:
            return self.shape, self._value.data_ptr()
        shape = (1, *self.shape[1:])
        return shape, self._value.data_ptr() + row * math.prod(shape) * self.dtype.itemsize

    def host(self) -> NDArray[Any]:
        """Return the content: the memory itself on the CPU, a copy of it on a device."""
        if self._provider != "cpu":
            copy: NDArray[Any] = self._value.numpy()
            return copy
        memory: Any = (ctypes.c_byte * self.nbytes).from_address(self._value.data_ptr())
        memory.owner = self._value  # keeps the memory alive
        return np.frombuffer(memoryview(memory), self.dtype).reshape(self.shape)

    def put(self, content: NDArray[Any]) -> None:
        """Overwrite everything by an array of this shape, which may be what `host` returned, changed."""
        if self._provider == "cpu":
            own = self.host()
            if not np.shares_memory(own, content):
                own[...] = content
        else:
            self._value.update_inplace(np.ascontiguousarray(content))
