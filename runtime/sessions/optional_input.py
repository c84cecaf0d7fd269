"""The optional input `logits_start`, which this runtime adds to the decoder graphs that it opens.

    model.onnx        … initializers: logits_start = [0], … inputs: input_ids, attention_mask, …
    as it is opened   … initializers: logits_start = [0], … inputs: input_ids, attention_mask, …, logits_start

An initializer that is also an input is the default of that input, and onnxruntime prints a warning of it to everybody
who opens such a graph. So the file has none. A protocol buffer may be written in pieces, which its reader joins: the
input is a piece of 30 bytes behind the file's own.
"""

from pathlib import Path
from typing import Any

from edgeformer.contract.tensors import LOGITS_START

GRAPH, INPUT, NAME, TYPE = 7, 11, 1, 2
"""Numbers of fields in onnx.proto: of a ModelProto, of its GraphProto, and of the ValueInfoProto of an input."""

INT64_1 = b"\x0a\x08\x08\x07\x12\x04\x0a\x02\x08\x01"
"""A TypeProto: a tensor of int64 (7) of the shape [1]."""

INITIALIZER = b"\x42" + bytes([len(LOGITS_START)]) + LOGITS_START.encode()
"""The name of the initializer as a file has it: field 8 of a TensorProto."""

LARGEST_GRAPH = 64 * 2**20
"""Bytes of a graph that are read for it. A graph without its weights takes a few MB; onnxruntime keeps them in memory
beside what it makes of them."""


def _field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer with fewer than 128 bytes of content."""
    return bytes([number << 3 | 2, len(content)]) + content


ADDED = _field(GRAPH, _field(INPUT, _field(NAME, LOGITS_START.encode()) + _field(TYPE, INT64_1)))


def with_optional_input(graph: Path, options: Any) -> str | bytes:
    """Return what to open a graph by: its path, or its content with the input, where it has the initializer.

    options: of the session; they are told where the weights are.
    """
    if graph.suffix != ".onnx" or not graph.is_file() or graph.stat().st_size > LARGEST_GRAPH:
        return str(graph)
    content = graph.read_bytes()
    if INITIALIZER not in content:
        return str(graph)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
    return content + ADDED
