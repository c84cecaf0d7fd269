"""The size of buffers that an adapter of WebGPU has: of weights, before a session is opened, and of runs that failed.

onnxruntime opens a session whose weights the adapter has no buffer for, and its runs fail with a word about an invalid
buffer. The plugin tells no limits, so a buffer is tried: by a graph of two nodes with an intermediate of its size.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from edgeformer.contract import protobuf as onnx
from edgeformer.contract.protobuf import read_fields
from edgeformer.runtime.sessions.graphs.optional_inputs import LARGEST_GRAPH
from edgeformer.runtime.sessions.providers.webgpu_machine import failure_of
from edgeformer.runtime.sessions.providers.webgpu_options import LEAST_BINDING, WebGpuOptions

MIB = 2**20

# This text, serialized; a test parses it:
#   <ir_version: 8, opset_import: ["" : 14]>
#   sums (float[m, 1] a, float[1, n] b) => (float[m] c)
#   <int64[1] last = {1}> { all = Add (a, b) c = ReduceSum <keepdims = 0> (all, last) }
GRAPH = (
    "CAg6lQEKEgoBYQoBYhIDYWxsIgNBZGQ6AAosCgNhbGwKBGxhc3QSAWMiCVJlZHVjZVN1bSoPCghrZWVwZGltcxgAoAECOgASBHN1bXMqDQgBEA"
    "c6AQFCBGxhc3RaFAoBYRIPCg0IARIJCgMSAW0KAggBWhQKAWISDwoNCAESCQoCCAEKAxIBbmIQCgFjEgsKCQgBEgUKAxIBbUIECgAQDg=="
)

COLUMNS = 2**16
"""Columns of the intermediate, of 256 KiB a row."""

SYMPTOMS = ("[Invalid Buffer", "Too many storage buffers", "exceeding maxStorageBufferBindingSize")
"""Words of errors of runs for which the adapter has no buffer, or not enough of them for the pieces of a large one."""


def largest_weight(graph: Path) -> tuple[str, int]:
    """Return name and bytes of the largest weight that a graph has in a file beside it; 0 bytes for a graph without."""
    sizes = {"": 0}
    if graph.suffix == ".onnx" and graph.is_file() and graph.stat().st_size <= LARGEST_GRAPH:
        # onnxruntime says what is wrong with a damaged file.
        with suppress(ValueError, IndexError):
            for tensor in _inside(memoryview(graph.read_bytes()), onnx.MODEL_GRAPH, onnx.GRAPH_INITIALIZER):
                (name,) = _inside(tensor, onnx.TENSOR_NAME)
                for entry in _inside(tensor, onnx.TENSOR_EXTERNAL):
                    texts = {field: bytes(text) for field, text in read_fields(entry)}
                    if texts.get(onnx.ENTRY_KEY) == b"length":
                        sizes[bytes(name).decode(errors="replace")] = int(texts[onnx.ENTRY_VALUE])
    return max(sizes.items(), key=lambda each: each[1])


def largest_buffer(ort: Any, options: WebGpuOptions, size: int) -> int:
    """Return the bytes of the largest buffer that works of `size`, its half, its quarter and so on; 0 for none."""
    while size >= MIB and refusal_of(ort, options, size) is not None:
        size //= 2
    return size if size >= MIB else 0


@cache
def refusal_of(ort: Any, options: WebGpuOptions, size: int) -> str | None:
    """Return what onnxruntime says of a buffer of some bytes; None where it works. Smaller ones than 128 MiB do."""
    import numpy as np

    if size <= LEAST_BINDING:
        return None
    rows = -(-size // (4 * COLUMNS))
    feeds = {"a": np.ones((rows, 1), np.float32), "b": np.ones((1, COLUMNS), np.float32)}
    return failure_of(ort, options, GRAPH, feeds)


def too_large(error: Exception) -> str:
    """Return a sentence about an error of a run that a buffer was too large for; empty for other errors."""
    if not any(words in str(error) for words in SYMPTOMS):
        return ""
    return (
        "The adapter of WebGPU has no buffer that is large enough for the caches or the numbers of this run. Give the "
        "model a shorter text, or fewer at a time."
    )


def megabytes(size: int) -> str:
    """Return bytes in MB, as errors say them."""
    return f"{size / 1e6:,.0f} MB"


def _inside(message: memoryview, *path: int) -> Iterator[memoryview]:
    """Yield the fields at the end of a path of field numbers."""
    for field, content in read_fields(message):
        if field == path[0]:
            yield from _inside(content, *path[1:]) if path[1:] else (content,)
