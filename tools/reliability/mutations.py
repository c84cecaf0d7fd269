"""Seeded mutations of files: of their bytes, of JSON documents, of ONNX graphs.

Every mutation takes a `random.Random`, so that a seed names a case for good.
"""

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

DEEP = 100_000
"""Levels of a list in a list …, more than any parser has a stack for."""

# Text of JSON that `json.dumps` does not write, by the string that stands for it until the end.
RAW = {
    "\u2402deep list": "[" * DEEP + "]" * DEEP,
    "\u2402deep object": '{"a":' * 3000 + "1" + "}" * 3000,
    "\u2402open list": "[" * 500,
    "\u2402digits": "9" * 5000,
    "\u2402negative digits": "-" + "9" * 400,
    "\u2402exponent": "1e400",
    "\u2402twice": '{"a": 1, "a": [2]}',
    "\u2402surrogate": '"\\ud800"',
    "\u2402reversed surrogates": '"\\udc00\\ud800"',
    "\u2402escape": '"\\x"',
    "\u2402bare": "undefined",
}

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"),
    2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**18, 10**30, -(10**9), 10**5, 10**9,
    "", "0", "1", "64", "nan", "true", "null", "\x00", "a" * 100_000, "é" * 10, "../../../etc/passwd", "/etc/passwd",
    "..", ".", "C:\\a", "~", "file:///etc/passwd", "{{ 1 }}", "%s%n", "\u202e", [], {}, [[]], [{}], {"": None},
    [None], [1, "a", None], [0] * 10_000, {"a": {"b": {"c": {}}}}, {"kind": "decoder"}, {"content": 3}, *RAW,
]  # fmt: skip


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return `data` with one to four faults: cut, flipped, removed, repeated or foreign bytes."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(data) + 1)
        length = draw.choice((1, 2, 8, 64, 1000))
        match draw.randrange(8):
            case 0:
                data = data[:place]
            case 1 if data:
                place = min(place, len(data) - 1)
                data = data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]
            case 2:
                data = data[:place] + data[place + length :]
            case 3:
                data = data[:place] + data[place : place + length] * 2 + data[place + length :]
            case 4:
                odd = draw.choice(
                    (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b"\xf8\x88\x80\x80")
                )
                data = data[:place] + odd + data[place:]
            case 5:
                data = data[:place] + draw.randbytes(length) + data[place + length :]
            case 6:
                data = data[:place] + draw.choice((b"[", b"{", b'"', b"-", b"9", b",", b"}")) * length + data[place:]
            case _:
                data = draw.choice((b"", data[::-1], data * 2, b"null", b"[]", b"{}", b"3", b'"a"', b"\xff\xfe" + data))
    return data


def mutate_json(data: Any, draw: random.Random) -> bytes:
    """Return the text of a JSON document with one to three faults in its structure."""
    data = json.loads(json.dumps(data))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = _fault(data, draw)
    text = json.dumps(data)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.encode()


def _fault(data: Any, draw: random.Random) -> Any:
    """Return a document with one odd, absent, renamed, moved or added value."""
    places = list(_places(data))
    if not places:
        return copy.deepcopy(draw.choice(ODD))
    # Half of the faults are near the root, where the fields are that programs read.
    near = [place for place in places if place[2] <= 1]
    holder, key, _ = draw.choice(near if near and draw.random() < 0.5 else places)
    value = holder[key]
    match draw.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[draw.choice((key + "_", "", key.upper(), "kind", "__class__", "\ud800"))] = holder.pop(key)
        case 2:
            other, name, _ = draw.choice(places)
            holder[key] = json.loads(json.dumps(other[name]))
        case 3 if isinstance(value, int | float) and not isinstance(value, bool):
            holder[key] = draw.choice(
                (-value, str(value), float(value), value * 1000, value + 1, value - 1, [value], 0)
            )
        case 4 if isinstance(value, str):
            holder[key] = draw.choice(
                (value[:-1], value * 2, value.encode().hex(), [value], {value: value}, "../" + value)
            )
        case 5 if isinstance(value, list | dict) and value:
            holder[key] = draw.choice(([value], {"a": value}, list(value), len(value)))
        case _:
            holder[key] = copy.deepcopy(draw.choice(ODD))  # later faults may change it
    return data


def _places(data: Any, depth: int = 0) -> Any:
    """Yield every place of a document: the list or object, the key in it, and how deep it is."""
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key, depth
        yield from _places(data[key], depth + 1)


def mutate_document(content: bytes, draw: random.Random) -> bytes:
    """Return a JSON file with faults in its structure, or in one of five cases in its bytes."""
    if draw.random() < 0.2:
        return mutate_bytes(content, draw)
    return mutate_json(json.loads(content), draw)


def mutate_safetensors(content: bytes, draw: random.Random) -> bytes:
    """Return a safetensors file with a fault in its length, its header or its bytes."""
    (length,) = struct.unpack("<Q", content[:8])
    header, rest = content[8 : 8 + length], content[8 + length :]
    match draw.randrange(4):
        case 0:
            return mutate_bytes(content[: 8 + length], draw) + rest
        case 1:
            odd = draw.choice((0, 1, 2**63, 2**64 - 1, 100_000_001, length + 1, length - 1, len(content)))
            return struct.pack("<Q", odd) + header + rest
        case _:
            header = mutate_json(json.loads(header), draw)
            return struct.pack("<Q", len(header)) + header + rest


def mutate_graph(content: bytes, draw: random.Random) -> bytes:
    """Return an ONNX graph with one to three faults in its messages, or in one of four cases in its bytes."""
    import onnx

    if draw.random() < 0.25:
        return mutate_bytes(content, draw)
    model = onnx.load_from_string(content)
    faults: list[Callable[[Any, random.Random], None]] = [_node, _initializer, _interface, _model, _external]
    for _ in range(draw.choice((1, 1, 2, 3))):
        try:
            draw.choice(faults)(model, draw)
        except (ValueError, IndexError):  # a number or name that protobuf cannot hold
            continue
    return bytes(model.SerializeToString())


NUMBERS = (-1, 0, 1, 3, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
NAMES = ("", "a", "é", "../x", "/etc/passwd", "input_ids", "logits", "attention_mask", "a" * 10_000, "%s", "a\x00b")


def _node(model: Any, draw: random.Random) -> None:
    nodes = model.graph.node if draw.random() < 0.7 or not model.functions else draw.choice(model.functions).node
    node = draw.choice(nodes)
    match draw.randrange(6):
        case 0:
            node.op_type = draw.choice((*NAMES, "Add", "Loop", "If", "Gather", "NonZero"))
        case 1:
            node.domain = draw.choice((*NAMES, "com.microsoft", "edgeformer", "ai.onnx.ml"))
        case 2 if node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(NAMES)
        case 3 if node.output:
            node.output[draw.randrange(len(node.output))] = draw.choice(NAMES)
        case 4 if node.attribute:
            attribute = draw.choice(node.attribute)
            attribute.i = draw.choice(NUMBERS)
            attribute.f = draw.choice((float("nan"), 1e38, -1.0, 0.0))
            if draw.random() < 0.3:
                attribute.type = draw.randrange(1, 12)
        case _:
            nodes.remove(node)


def _initializer(model: Any, draw: random.Random) -> None:
    tensor = draw.choice(model.graph.initializer)
    match draw.randrange(4):
        case 0 if tensor.dims:
            tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(NUMBERS)
        case 1:
            tensor.data_type = draw.randrange(0, 30)
        case 2:
            tensor.name = draw.choice(NAMES)
        case _:
            tensor.raw_data = draw.randbytes(draw.choice((0, 1, 8, 1000)))


def _interface(model: Any, draw: random.Random) -> None:
    values = draw.choice((model.graph.input, model.graph.output))
    value = draw.choice(values)
    dims = value.type.tensor_type.shape.dim
    match draw.randrange(4):
        case 0 if dims:
            draw.choice(dims).dim_value = draw.choice(NUMBERS)
        case 1:
            value.type.tensor_type.elem_type = draw.randrange(0, 30)
        case 2:
            value.name = draw.choice(NAMES)
        case _:
            values.remove(value)


def _model(model: Any, draw: random.Random) -> None:
    match draw.randrange(4):
        case 0:
            model.ir_version = draw.choice(NUMBERS)
        case 1:
            draw.choice(model.opset_import).version = draw.choice(NUMBERS)
        case 2:
            model.graph.node.add().CopyFrom(draw.choice(model.graph.node))
        case _ if model.functions:
            draw.choice(model.functions).name = draw.choice(NAMES)


PATHS = (
    "../../../../etc/passwd",
    "/etc/passwd",
    "",
    ".",
    "..",
    "model.onnx",
    "/dev/zero",
    "/proc/self/mem",
    "a\x00b",
    "é",
)


def _external(model: Any, draw: random.Random) -> None:
    external = [tensor for tensor in model.graph.initializer if tensor.external_data]
    for entry in draw.choice(external).external_data:
        if entry.key == "location" and draw.random() < 0.6:
            entry.value = draw.choice(PATHS)
        elif draw.random() < 0.4:
            entry.value = draw.choice(("-1", "0", "1", "a", "", str(2**62), str(2**64), "1e9", "9" * 400))


TEMPLATES = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(10**12) %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ ['a'] * 10**10 }}",
    "{{ 10**10**10 }}",
    "{{ 'a'.__class__.__mro__ }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ raise_exception('no') }}",
    "{{ messages.append(1) }}",
    "{% set x = namespace(n='a') %}{% for i in range(60) %}{% set x.n = x.n + x.n %}{% endfor %}{{ x.n }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends '../../x' %}",
    "{{ cycler.__init__.__globals__.os.system('id') }}",
    "{{ lipsum(99999) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ 'a' | center(10**10) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ 'a'|indent(10**9) }}",
    "{{ ('a' * 99999)|replace('a', 'b' * 99999) }}",
    "{{ 'a'.join(['b' * 9999] * 9999) }}",
    "{{ ('a' * 40) | regex('(a+)+b') }}",
    "{% for i in range(99) recursive %}{{ loop(range(99)) }}{% endfor %}",
    "{{ strftime_now('%' * 100000) }}",
    "{{ strftime_now(3) }}",
    "{" * 10_000,
    "{% if " + "(" * 5000 + "1" + ")" * 5000 + " %}{% endif %}",
    "{{ 1 " + "+ 1" * 20_000 + " }}",
    "{{ '\ud800' }}",
)
"""Chat templates that loop, allocate, recurse, look outside, or are no templates."""


def mutate_template(content: bytes, draw: random.Random) -> bytes:
    """Return a chat template with a hostile expression in it, or with faults in its bytes."""
    if draw.random() < 0.4:
        return mutate_bytes(content, draw)
    place = draw.randrange(len(content) + 1) if draw.random() < 0.5 else 0
    return content[:place] + draw.choice(TEMPLATES).encode("utf-8", "surrogatepass") + content[place:]
