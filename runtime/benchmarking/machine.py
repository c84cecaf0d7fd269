"""What the machine does at best: bytes read and matrix products, a second, with as many threads as the model has."""

import base64
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import numpy as np

from edgeformer.runtime.session import onnxruntime, session_options

READ_BYTES = 256 << 20
"""Of the array that is read; caches hold less."""

ROWS = 256
"""Of a product's left side: a chunk of a prompt."""

SIZES = range(512, 4097)
"""Inputs and outputs of a product. Below, a call costs more than its product; above, memory would be wasted."""

TURN_SECONDS = 0.15

# onnxruntime multiplies fastest with a constant right side, which it packs once. These graphs make one of ones, of
# the shape that stands in the place of the letters; the tests have their text.
#   fp32:  c = MatMul(a, b)
#   int8:  c = com.microsoft.DynamicQuantizeMatMul(a, b, scales), b int8, a rounded to uint8 on the way
GRAPHS = {
    "fp32": (
        "CAg6oQEKNwoFc2hhcGUSAWIiD0NvbnN0YW50T2ZTaGFwZSoYCgV2YWx1ZSoMCAEQASIEAACAP0IAoAEEOgAKEwoBYQoBYhIBYyIG"
        "TWF0TXVsOgASBGZwMzIqHQgCEAdCBXNoYXBlShBLS0tLS0tLS05OTk5OTk5OWhUKAWESEAoOCAESCgoDEgFtCgMSAWtiFQoBYxIQ"
        "Cg4IARIKCgMSAW0KAxIBbkIECgAQEg=="
    ),
    "int8": (
        "CAg6jQIKNAoFc2hhcGUSAWIiD0NvbnN0YW50T2ZTaGFwZSoVCgV2YWx1ZSoJCAEQAyoBAUIAoAEEOgAKNwoFd2lkdGgSAXMiD0Nv"
        "bnN0YW50T2ZTaGFwZSoYCgV2YWx1ZSoMCAEQASIEAACAP0IAoAEEOgAKMgoBYQoBYgoBcxIBYyIVRHluYW1pY1F1YW50aXplTWF0"
        "TXVsOg1jb20ubWljcm9zb2Z0EgRpbnQ4Kh0IAhAHQgVzaGFwZUoQS0tLS0tLS0tOTk5OTk5OTioVCAEQB0IFd2lkdGhKCE5OTk5O"
        "Tk5OWhUKAWESEAoOCAESCgoDEgFtCgMSAWtiFQoBYxIQCg4IARIKCgMSAW0KAxIBbkIECgAQEkIRCg1jb20ubWljcm9zb2Z0EAE="
    ),
}


def matmul_graph(kind: str, inputs: int, outputs: int) -> bytes:
    """A serialized ONNX model that multiplies float32 [M, inputs] with constants [inputs, outputs]."""
    graph = base64.b64decode(GRAPHS[kind])
    return graph.replace(b"K" * 8, inputs.to_bytes(8, "little")).replace(b"N" * 8, outputs.to_bytes(8, "little"))


class Machine:
    """Measures the CPU, a fraction of a second at a time, so that measurements can stand between those of a model.

    inputs, outputs: of the model's largest products; these are of about that shape, `matmul` (rows, inputs, outputs).
    """

    def __init__(self, threads: int, inputs: int, outputs: int):
        inputs, outputs = (min(max(size, SIZES[0]), SIZES[-1]) for size in (inputs, outputs))
        self.matmul = (ROWS, inputs, outputs)
        self._pool = ThreadPoolExecutor(threads)
        # Ones and not zeros, which would be one page of the system's, mapped everywhere.
        self._parts = np.array_split(np.ones(READ_BYTES // 4, np.int32), threads)
        self._left = np.random.default_rng(0).standard_normal((ROWS, inputs), np.float32)
        self._sessions = {kind: _open(matmul_graph(kind, inputs, outputs), threads) for kind in GRAPHS}

    def bandwidth(self) -> float:
        """Bytes read a second. The largest of integers: sums are slower than memory, and floats ask for NaN."""
        return READ_BYTES / _seconds(lambda: list(self._pool.map(np.max, self._parts)))

    def fp32(self) -> float:
        """Operations a second of a float32 product, its multiplications and its additions."""
        return self._matmul_rate("fp32")

    def int8(self) -> float:
        """The same of an int8 product, from float32 to float32."""
        return self._matmul_rate("int8")

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown()

    def _matmul_rate(self, kind: str) -> float:
        rows, inputs, outputs = self.matmul
        session = self._sessions[kind]
        return 2 * rows * inputs * outputs / _seconds(lambda: session.run(None, {"a": self._left}))


def _open(graph: bytes, threads: int) -> Any:
    return onnxruntime().InferenceSession(graph, session_options(threads), providers=["CPUExecutionProvider"])


def _seconds(work: Callable[[], object]) -> float:
    """Seconds of one call: the median of as many as fit into a turn, and of one at least, after one that warms up."""
    work()
    seconds: list[float] = []
    while sum(seconds) < TURN_SECONDS:
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
