"""Memory of the host that CUDA copies from and to at once: page-locked, and so without a copy to such memory before.

onnxruntime has it from its allocator CudaPinned: the one of a CUDA device's memory of the type HOST_ACCESSIBLE. Its
Python classes (1.31) name only a device's own memory, because `OrtDevice.make` takes no type of memory, and no shared
allocator of this type is registered. So the session is asked through onnxruntime's extension module, which takes the
type. A version without that call leaves the memory as numpy allocates it, and CUDA copies by way of its own.
"""

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.providers import Provider
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import onnxruntime_errors

Array = NDArray[Any]


class HostMemory:
    """Arrays on the host that are sent to a device or come from one, in memory that is kept.

    session: which runs on the device; on the CPU, arrays are numpy's.
    """

    def __init__(self, session: Any, provider: Provider):
        self._session, self._provider = session, provider
        self._kept: dict[str, Array] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any] | type[np.generic]) -> Array:
        """Return an uninitialised array, in the memory of the one that was asked for before by the same name."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if name not in self._kept or self._kept[name].nbytes < size:
            self._kept[name] = self._new(size)
        return self._kept[name][:size].view(dtype).reshape(shape)

    def _new(self, size: int) -> Array:
        """Return bytes [size], page-locked where that can be."""
        found = pinned(self._session, self._provider, size)
        return np.empty(size, np.uint8) if found is None else found


def pinned(session: Any, provider: Provider, size: int) -> Array | None:
    """Return page-locked bytes [size] for a session on a device; None if onnxruntime has no call for it, or none left.

    They live as long as the array and its views, and keep the session, whose allocator they are from.
    """
    if not provider.on_device:
        return None
    allocate = getattr(session._sess, "create_ortvalue_from_shape_and_type", None)
    if allocate is None:
        return None
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    # A changed signature, or no pages left. Such memory only saves time, so callers do without.
    failures: tuple[type[Exception], ...] = (TypeError, *onnxruntime_errors())
    try:
        device = sessions_of(provider).pinned_memory(state)
        value = None if device is None else allocate([size], np.uint8, device)
    except failures:
        return None
    if value is None:
        return None
    memory: Any = (ctypes.c_byte * size).from_address(value.data_ptr())
    memory.owner = session, value  # a tuple drops its last item first, and the value may not outlive its session
    return np.frombuffer(memoryview(memory), np.uint8)
