"""Measure how fast this machine reads its memory. A decode step reads every weight once, so no step is faster."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

READ_BYTES = 1 << 30
"""Bytes of a pass: beyond all caches. Two cores of a large server may have 260 MB of its last-level cache."""


class MemoryReader:
    """Memory that `threads` threads read front to back, a share each, and do next to nothing with."""

    def __init__(self, threads: int, size: int = READ_BYTES):
        self._shares = [np.ones(size // 8 // threads, np.int64) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self) -> float:
        """Read all of it once; return the bytes per second."""
        start = time.perf_counter()
        # Of numpy's reductions the maximum comes nearest to a loop in C++ with prefetches: 31 GB/s where that reads 32.
        list(self._pool.map(np.max, self._shares))
        return sum(share.nbytes for share in self._shares) / (time.perf_counter() - start)
