"""Memory that graphs read and write at a fixed address, of the host or of a device."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.sessions.narrow_floats import element_type
from edgeformer.runtime.sessions.pages import Pages
from edgeformer.runtime.sessions.session import onnxruntime, onnxruntime_errors

Rows = int | range | None
"""One row, adjacent rows, or None for all."""


Kind = tuple[tuple[int, ...], type[np.generic]]
"""The shape and the element type of a buffer."""

ALIGNMENT = 64
"""Bytes of a cache line, on which every buffer begins."""


class Buffer:
    """An array of fixed shape, of which a graph can be bound to all rows, to adjacent ones or to a single one.

    value: an OrtValue to keep, such as an output of a graph; None allocates new memory, uninitialised, of which the
    system provides only the pages that are written.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic], provider: Provider = CPU, value: Any = None):
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._provider = provider
        self._pages: Pages | None = None
        self._offset = 0
        self._host: NDArray[Any] | None = None  # of a buffer on the CPU, once it was asked for
        if value is None:
            try:
                value = onnxruntime().OrtValue.ortvalue_from_shape_and_type(shape, dtype, provider.name, 0)
            except MemoryError as error:
                raise _not_allocated(shape, error) from error
            except onnxruntime_errors() as error:
                raise _not_allocated(shape, error) from error
        self._value = value

    @classmethod
    def reserved(cls, shape: tuple[int, ...], dtype: type[np.generic]) -> Self:
        """Return a buffer of zeros on the CPU, whose pages take memory once they are written, until `release`."""
        return cls.side_by_side([(shape, dtype)])[0]

    @classmethod
    def side_by_side(cls, kinds: Sequence[Kind]) -> list[Self]:
        """Return buffers as `reserved` does, one behind the other in one memory.

        Raises RequestError where the system does not give it.
        """
        offsets, size = [], 0
        for shape, dtype in kinds:
            offsets.append(size)
            size += -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        try:
            pages = Pages(size)
        except (OSError, MemoryError) as error:
            raise _not_allocated(max((shape for shape, _ in kinds), key=math.prod), error) from error
        buffers = []
        for (shape, dtype), offset in zip(kinds, offsets, strict=True):
            array = pages.array(shape, dtype, offset)
            buffer = cls(shape, dtype, CPU, onnxruntime().OrtValue.ortvalue_from_numpy(array))
            buffer._pages, buffer._offset = pages, offset
            buffers.append(buffer)
        return buffers

    def prefer_huge_pages(self, rows: Rows = None) -> None:
        """Ask the system for huge pages for rows of a reserved buffer, where they are not written yet."""
        if self._pages is not None:
            self._pages.prefer_huge(*self._extent(rows))

    def release(self, row: int) -> None:
        """Give the memory of a row of a reserved buffer back, where the system can.

        The row then has zeros, or what it had. Pages that the row shares with its neighbours stay.
        """
        if self._pages is not None:
            self._pages.release(*self._extent(row))

    def _extent(self, rows: Rows) -> tuple[int, int]:
        """Return where rows begin in the pages, and their size, in bytes."""
        shape, address = self._shape_and_address(rows)
        return self._offset + address - self._value.data_ptr(), math.prod(shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def bind_input(self, binding: Any, name: str, rows: Rows = None, kind: Any = None) -> None:
        """Bind the buffer, or rows of it, as an input of a graph. kind: its element type there, by default its own."""
        kind = element_type(self.dtype) if kind is None else kind
        binding.bind_input(name, self._provider.name, 0, kind, *self._shape_and_address(rows))

    def bind_output(self, binding: Any, name: str, rows: Rows = None, kind: Any = None) -> None:
        """Bind the buffer, or rows of it, as an output of a graph. kind: its element type there, by default its own."""
        kind = element_type(self.dtype) if kind is None else kind
        binding.bind_output(name, self._provider.name, 0, kind, *self._shape_and_address(rows))

    def _shape_and_address(self, rows: Rows) -> tuple[tuple[int, ...], int]:
        """Return the shape and the address of the buffer, or of rows of it."""
        if rows is None:
            return self.shape, self._value.data_ptr()
        first, count = (rows, 1) if isinstance(rows, int) else (rows.start, len(rows))
        address = self._value.data_ptr() + first * math.prod(self.shape[1:]) * self.dtype.itemsize
        return (count, *self.shape[1:]), address

    def host(self) -> NDArray[Any]:
        """Return the content: the memory itself on the CPU, a copy of it on a device."""
        if self._provider.on_device:
            copy: NDArray[Any] = self._value.numpy()
            return copy
        if self._host is None:
            memory: Any = (ctypes.c_byte * self.nbytes).from_address(self._value.data_ptr())
            memory.owner = self._value  # keeps the memory alive
            self._host = np.frombuffer(memoryview(memory), self.dtype).reshape(self.shape)
        return self._host

    def put(self, content: NDArray[Any]) -> None:
        """Overwrite everything by an array of this shape, which may be what `host` returned, changed."""
        if not self._provider.on_device:
            own = self.host()
            if not np.shares_memory(own, content):
                own[...] = content
        else:
            self._value.update_inplace(np.ascontiguousarray(content))


def _not_allocated(shape: tuple[int, ...], error: Exception) -> RequestError:
    size = " x ".join(f"{each:,}" for each in shape)
    return RequestError(f"a cache of {size} numbers cannot be allocated: {error}")
