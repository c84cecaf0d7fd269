"""The optional inputs `logits_start` and `request_length`, which this runtime adds to the decoder graphs that it opens.

    model.onnx        … initializers: logits_start = [0], … inputs: input_ids, attention_mask, …
    as it is opened   … initializers: logits_start = [0], … inputs: input_ids, attention_mask, …, logits_start

An initializer that is also an input is the default of that input, and onnxruntime prints a warning of it to everybody
who opens such a graph. So the file has none. A protocol buffer may be written in pieces, which its reader joins: an
input is a piece of 30 bytes behind the file's own.
"""

from pathlib import Path
from typing import Any

from edgeformer.contract import protobuf as onnx
from edgeformer.contract.protobuf import written_field
from edgeformer.contract.tensors import LOGITS_START, REQUEST_LENGTH

INT64 = 7
"""The number of the element type in onnx.proto."""

OPTIONAL = {
    LOGITS_START: written_field(onnx.DIM_VALUE, 1), REQUEST_LENGTH: written_field(onnx.DIM_NAME, "batch_size"),
}  # fmt: skip
"""The inputs, int64 of one dimension, and that dimension."""

LARGEST_GRAPH = 64 * 2**20
"""Bytes of a graph that are read for it. A graph without its weights takes a few MB; onnxruntime keeps them in memory
beside what it makes of them."""


def added_input(name: str) -> bytes:
    """Return the piece of a file that adds an optional input."""
    shape = written_field(onnx.SHAPE_DIM, OPTIONAL[name])
    tensor = written_field(onnx.TENSOR_ELEMENT, INT64) + written_field(onnx.TENSOR_SHAPE, shape)
    kind = written_field(onnx.VALUE_TYPE, written_field(onnx.TYPE_TENSOR, tensor))
    value = written_field(onnx.VALUE_NAME, name) + kind
    return written_field(onnx.MODEL_GRAPH, written_field(onnx.GRAPH_INPUT, value))


ADDED = {written_field(onnx.TENSOR_NAME, name): added_input(name) for name in OPTIONAL}
"""The piece of each input by the name of its initializer, as a file has it."""


def content_of(graph: Path) -> bytes | None:
    """Return the content of a file of nodes alone; None for one of another format, or with weights in it."""
    small = graph.suffix == ".onnx" and graph.is_file() and graph.stat().st_size <= LARGEST_GRAPH
    return graph.read_bytes() if small else None


def with_optional_inputs(graph: Path, options: Any, content: bytes | None = None) -> str | bytes:
    """Return what to open a graph by: its path, or its content with the inputs of which it has the initializers.

    options: of the session; they are told where the weights are. content: what stands in for that of the file.
    """
    given = content is not None
    if content is None and (content := content_of(graph)) is None:
        return str(graph)
    added = b"".join(piece for initializer, piece in ADDED.items() if initializer in content)
    if not added and not given:
        return str(graph)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
    return content + added


def has_optional_input(session: Any, name: str) -> bool:
    """Return whether a session has an optional input."""
    return any(each.name == name for each in session.get_overridable_initializers())
