"""Let the C library reuse memory that was freed, while modules run whose weights are read anew for each layer."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt` (mallopt(3)): bytes at the end of the heap that are kept; bytes from which a block is
mapped by itself, and unmapped when it is freed."""
REUSED, LARGEST = 2**30, 2**31 - 1
"""Bytes of a block that is reused, and of what is kept of the heap: all of it."""
USUAL = 2**25
"""Bytes up to which glibc reuses blocks by itself, once such large ones were freed: DEFAULT_MMAP_THRESHOLD_MAX."""


@contextmanager
def reusing_freed_memory() -> Iterator[None]:
    """Keep freed memory for the next blocks, and return it in the end; elsewhere than with glibc nothing changes.

    A matrix of float64 is mapped when its layer runs and unmapped after it, and the kernel clears each of its pages
    again. Measured on an export of 135M parameters: 9.8 s of 46 s of processor time, and 3.5 s so, with 3 % more
    memory.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, REUSED) or library.mallopt(M_MMAP_THRESHOLD, USUAL)
    library.mallopt(M_TRIM_THRESHOLD, LARGEST)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_THRESHOLD, USUAL)
        library.mallopt(M_TRIM_THRESHOLD, 2 * USUAL)
        library.malloc_trim(0)
