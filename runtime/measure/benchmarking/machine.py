"""Measure the machine's peak rates with the model's number of threads: memory bandwidth, and matrix products."""

import base64
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import numpy as np

from edgeformer.runtime.sessions.session import onnxruntime, session_options

READ_BYTES = 256 << 20
"""Bytes of the array that is read: more than processor caches hold."""

ROWS = 256
"""Rows of the left factor: a chunk of a prompt (`memory.PREFILL_CHUNK`)."""

SIZES = range(512, 4097)
"""Range of inputs and outputs of a product. Below it, the call costs more than the product; above, memory is wasted."""

TURN_SECONDS = 0.15
"""Seconds that one measurement repeats its work."""

# onnxruntime multiplies fastest with a constant right factor, which it packs once. These graphs have one of ones, whose
# shape replaces the letters K and N; a test has their text.
#   fp32:  c = MatMul(a, b)
#   int8:  c = com.microsoft.DynamicQuantizeMatMul(a, b, scales), b int8, a quantized to uint8 by the op
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
    """Return a serialized ONNX model that multiplies float32 [M, inputs] with constants [inputs, outputs]."""
    graph = base64.b64decode(GRAPHS[kind])
    return graph.replace(b"K" * 8, inputs.to_bytes(8, "little")).replace(b"N" * 8, outputs.to_bytes(8, "little"))


class Machine:
    """Measures the CPU, a fraction of a second at a time, so that its measurements take turns with those of a model.

    inputs, outputs: of the model's largest products. matmul: (rows, inputs, outputs) of the product that is measured,
    which has about that shape.
    """

    def __init__(self, threads: int, inputs: int, outputs: int):
        inputs, outputs = (min(max(size, SIZES[0]), SIZES[-1]) for size in (inputs, outputs))
        self.matmul = (ROWS, inputs, outputs)
        self._pool = ThreadPoolExecutor(threads)
        # Ones, because an array of zeros would be one page of the system, mapped repeatedly.
        self._parts = np.array_split(np.ones(READ_BYTES // 4, np.int32), threads)
        self._left = np.random.default_rng(0).standard_normal((ROWS, inputs), np.float32)
        self._sessions = {kind: _open(matmul_graph(kind, inputs, outputs), threads) for kind in GRAPHS}

    def bandwidth(self) -> float:
        """Return bytes read per second, by np.max of integers: sums are slower than memory, floats check for NaN."""
        return READ_BYTES / _seconds(lambda: list(self._pool.map(np.max, self._parts)))

    def fp32(self) -> float:
        """Return the FLOP/s of a float32 product; multiplications and additions count."""
        return self._matmul_rate("fp32")

    def int8(self) -> float:
        """Return the OP/s of an int8 product, with quantization of its float32 input and a float32 output."""
        return self._matmul_rate("int8")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _matmul_rate(self, kind: str) -> float:
        rows, inputs, outputs = self.matmul
        session = self._sessions[kind]
        return 2 * rows * inputs * outputs / _seconds(lambda: session.run(None, {"a": self._left}))


def _open(graph: bytes, threads: int) -> Any:
    return onnxruntime().InferenceSession(graph, session_options(threads), providers=["CPUExecutionProvider"])


def _seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call: the median over a turn of at least one call, after a warm-up call."""
    work()
    seconds: list[float] = []
    while sum(seconds) < TURN_SECONDS:
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
