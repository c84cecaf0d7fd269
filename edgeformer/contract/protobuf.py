"""Files of ONNX as messages of protocol buffers, for code without the package onnx.

https://protobuf.dev/programming-guides/encoding/ has the format, and onnx.proto the numbers of the fields.
"""

from collections.abc import Callable, Iterator

MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSET_IMPORT, MODEL_FUNCTIONS, OPSET_VERSION = 1, 7, 8, 25, 2
GRAPH_NODE, GRAPH_NAME, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO = 1, 2, 5, 11, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN, NODE_OVERLOAD = 1, 2, 3, 4, 5, 7, 8
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_STRING, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS, ATTRIBUTE_TYPE = 1, 3, 4, 6, 11, 20
FUNCTION_NAME, FUNCTION_NODE, FUNCTION_DOMAIN, FUNCTION_OVERLOAD = 1, 7, 10, 13
TENSOR_DIMS, TENSOR_TYPE, TENSOR_INT64, TENSOR_NAME, TENSOR_EXTERNAL, TENSOR_LOCATION = 1, 2, 7, 8, 13, 14
ENTRY_KEY, ENTRY_VALUE = 1, 2
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE, SHAPE_DIM = 1, 2, 1, 1, 2, 1
DIM_VALUE, DIM_NAME = 1, 2

TYPE_INT, TYPE_STRING = 2, 3
"""The types of attributes that are an integer and a text."""


def read_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of the fields of a message that have a length; numbers are skipped.

    Raises ValueError and IndexError for a damaged message.
    """
    for field, content, _, _ in _fields(message):
        if content is not None:
            yield field, content


def read_texts(message: memoryview, wanted: int) -> list[str]:
    """Return the texts that the fields of one number have. Raises as `read_fields`, and for what is no UTF-8."""
    return [str(content, "utf-8") for field, content in read_fields(message) if field == wanted]


def read_numbers(message: memoryview, wanted: int) -> list[int]:
    """Return the numbers that the fields of one number have, each of which stands alone. Raises as `read_fields`."""
    numbers = []
    for field, content, start, _ in _fields(message):
        if field == wanted and content is None:
            key, at = _read_varint(message, start)
            if key & 7:
                raise ValueError("a number of fixed width")
            numbers.append(_read_varint(message, at)[0])
    return numbers


def replaced_fields(message: memoryview, replacement: Callable[[int, memoryview], bytes | None]) -> bytes:
    """Return a message in which fields that have a length may have another content.

    replacement: number and content of a field → its new content, None for the one it has. Raises as `read_fields`.
    """
    parts: list[bytes | memoryview] = []
    for field, content, start, end in _fields(message):
        new = None if content is None else replacement(field, content)
        parts.append(message[start:end] if new is None else written_field(field, new))
    return b"".join(parts)


def value_of_width(value: memoryview, width: int, element: int | None = None) -> bytes:
    """Return an input or output of a graph whose last dimension is `width`. element: another type of its numbers.

    Raises as `read_fields`.
    """

    def with_shape(number: int, shape: memoryview) -> bytes | None:
        if number != TENSOR_SHAPE:
            return None
        *dims, _ = [bytes(part) for field, part in read_fields(shape) if field == SHAPE_DIM]
        return b"".join(written_field(SHAPE_DIM, dim) for dim in (*dims, written_field(DIM_VALUE, width)))

    def with_tensor(number: int, tensor: memoryview) -> bytes | None:
        if number != TYPE_TENSOR:
            return None
        # Of a field that is there twice, readers take the last.
        return replaced_fields(tensor, with_shape) + (
            b"" if element is None else written_field(TENSOR_ELEMENT, element)
        )

    return replaced_fields(
        value, lambda number, kind: replaced_fields(kind, with_tensor) if number == VALUE_TYPE else None
    )


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | None, int, int]]:
    """Yield number and content of each field, and where it begins and ends; the content of a number is None."""
    at = 0
    while at < len(message):
        start, content = at, None
        key, at = _read_varint(message, at)
        match key & 7:
            case 0:
                _, at = _read_varint(message, at)
            case 1:
                at += 8
            case 2:
                size, at = _read_varint(message, at)
                if at + size > len(message):
                    raise ValueError("a field ends behind its message")
                content = message[at : at + size]
                at += size
            case 5:
                at += 4
            case _:
                raise ValueError("a field of an unknown type")
        yield key >> 3, content, start, at


def written_field(number: int, content: int | str | bytes) -> bytes:
    """Return a field of a message: a number, or text or a message behind its length."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content % 2**64)
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Read an integer, 7 bits in a byte, the low ones first; return it and where it ends."""
    value = shift = 0
    while True:
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint(number: int) -> bytes:
    """Return a number in groups of 7 bits, the lowest first; all but the last have the bit 128."""
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])
