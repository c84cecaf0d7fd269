"""Memory of the host in whole pages: zeros that take memory once they are written, and huge pages where they pay."""

import math
import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Options of a mapping that `madvise` empties: pages of a shared one, which Python makes by default, would stay."""

HUGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None) if mmap.PAGESIZE == 4096 else None
"""The advice that Linux follows with pages of 2 MB; None elsewhere.

Those of systems with larger pages are of 512 MB, for instance on ARM with pages of 64 KB.
"""


class Pages:
    """Memory of `size` bytes, and arrays in it; it goes back to the system when nobody refers to it or to an array.

    Raises OSError or MemoryError where the system does not give it.
    """

    def __init__(self, size: int):
        if size > sys.maxsize:
            raise MemoryError("it has more bytes than a process can address")
        self._memory = mmap.mmap(-1, max(size, 1), **PRIVATE)

    def array(self, shape: tuple[int, ...], dtype: type[np.generic], offset: int) -> NDArray[Any]:
        """Return the array that begins at a byte of the memory."""
        return np.frombuffer(self._memory, dtype, math.prod(shape), offset).reshape(shape)

    def prefer_huge(self, start: int, size: int) -> None:
        """Ask for huge pages from a byte on, which the system gives where it first writes.

        The processor finds their addresses with fewer steps, and fetches ahead in them beyond 4 KB. Each takes its 2 MB
        at once, so only memory that will be written is worth asking for. What is asked for side by side is one range,
        whose huge pages may cross its seams.
        """
        if HUGE is None:
            return
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        with suppress(OSError):  # EINVAL of a system that was built without huge pages: then pages are small
            self._memory.madvise(HUGE, first, start + size - first)

    def release(self, start: int, size: int) -> None:
        """Give the pages that lie in these bytes alone back, where the system can; they have zeros then."""
        if not hasattr(self._memory, "madvise"):
            return
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self._memory.madvise(mmap.MADV_DONTNEED, first, length)
