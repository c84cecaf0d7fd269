"""Read the header of a GGUF file: its metadata, and where its tensors are. Nothing here needs torch or numpy.

A file has a header, then the bytes of tensors. Every length in it is checked against the bytes that are left before
anything is made of it, so that a damaged file is one sentence. Tensors stay in the file, which is mapped into memory.
Source: ggml/docs/gguf.md.
"""

import math
import mmap
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from edgeformer.errors import WeightsError, shown

MAGIC, VERSIONS, SUFFIX = b"GGUF", (2, 3), ".gguf"
DEFAULT_ALIGNMENT, MOST_AXES = 32, 4
SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
"""Name of a file of a model that is split into several: its stem, its number, and how many there are."""

SCALARS = {
    0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4), 7: ("?", 1),
    10: ("Q", 8), 11: ("q", 8), 12: ("d", 8),
}  # fmt: skip
"""Kinds of single values in metadata: their format of `struct`, and bytes."""
TEXT, ARRAY = 8, 9
"""Kinds of values that have a length of their own."""


@dataclass(frozen=True)
class TensorType:
    """How a file stores numbers: the numbers in a block, and the bytes of it."""

    name: str
    block: int
    bytes: int


TYPES = {
    0: TensorType("F32", 1, 4), 1: TensorType("F16", 1, 2), 30: TensorType("BF16", 1, 2),
    2: TensorType("Q4_0", 32, 18), 3: TensorType("Q4_1", 32, 20), 6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24), 8: TensorType("Q8_0", 32, 34), 10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110), 12: TensorType("Q4_K", 256, 144), 13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210), 16: TensorType("IQ2_XXS", 256, 66), 17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98), 19: TensorType("IQ1_S", 256, 50), 20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110), 22: TensorType("IQ2_S", 256, 82), 23: TensorType("IQ4_XS", 256, 136),
    29: TensorType("IQ1_M", 256, 56), 39: TensorType("MXFP4", 32, 17),
}  # fmt: skip
"""Types of tensors that are read, by their numbers in ggml."""

UNREAD = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip
"""Names of types that are not read."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file. shape: its outermost axis first, as in torch. data: the bytes of all files, start: of it."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: mmap.mmap
    start: int

    @property
    def bytes(self) -> int:
        """The bytes that it has in the file."""
        return math.prod(self.shape) // self.type.block * self.type.bytes


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, or all files of a split one.

    Attributes:
        paths: the files, in order.
        metadata: their values by key; those of the first file count.
        tensors: by the names that llama.cpp has for them.
    """

    paths: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def name(self) -> str:
        """The name of the file, or of the first one, for people."""
        return self.paths[0].name

    def holds(self, pattern: str) -> bool:
        """Whether the name of a tensor matches a regular expression."""
        return any(re.fullmatch(pattern, name) for name in self.tensors)


_opened: WeakValueDictionary[tuple[tuple[Path, int, int], ...], GgufFile] = WeakValueDictionary()
"""Files that are in use, by path, time and size. A header has a text for every token and merge, 0.15 s of them."""


def open_gguf(path: Path) -> GgufFile:
    """Open a file, and those that belong to it. Raises WeightsError for a file that is no GGUF, or damaged.

    A file that is open already, and has not changed since, is not read again.
    """
    paths = split_files(path)
    try:
        states = [(each.resolve(), each.stat()) for each in paths]
    except OSError:
        return _open(path, paths)  # which says what is wrong
    key = tuple((each, state.st_mtime_ns, state.st_size) for each, state in states)
    return _opened.get(key) or _opened.setdefault(key, _open(path, paths))


def _open(path: Path, paths: tuple[Path, ...]) -> GgufFile:
    metadata: dict[str, Any] = {}
    tensors: dict[str, StoredTensor] = {}
    for each in paths:
        values, found = _read(each)
        for name in found.keys() & tensors.keys():
            raise WeightsError(f"{path} is damaged: two of its files hold {shown(name)}. Download it again.")
        metadata, tensors = {**values, **metadata}, tensors | found
    return GgufFile(paths, metadata, tensors)


def split_files(path: Path) -> tuple[Path, ...]:
    """Return a file, or all files of the split model that it belongs to. Raises WeightsError where one is missing."""
    match = SPLIT.fullmatch(path.name)
    if match is None:
        return (path,)
    stem, total = match[1], int(match[3])
    if not 0 < int(match[2]) <= total:
        raise WeightsError(f"{path} is named as file {int(match[2])} of {total}. Download it again.")
    paths = tuple(path.with_name(f"{stem}-{number:05d}-of-{total:05d}{SUFFIX}") for number in range(1, total + 1))
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        raise WeightsError(f"{path} is one of {total} files, and {missing[0]} is missing beside it. Download it, too.")
    return paths


def _read(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Return metadata and tensors of one file."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}).") from None
    if data is None or data[:4] != MAGIC:
        raise WeightsError(f"{path} is no GGUF file: it does not begin as one. Download it again.")
    header = _Header(path, data)
    version = header.number("I", 4)
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            raise WeightsError(
                f"{path} is a big-endian GGUF file, and edgeformer reads little-endian ones. Convert it with "
                "gguf_convert_endian.py of llama.cpp, or download the file for other machines."
            )
        known = " and ".join(map(str, VERSIONS))
        raise WeightsError(f"{path} is GGUF of version {version}, and edgeformer reads {known}. Convert it anew.")
    tensor_count, value_count = header.number("Q", 8), header.number("Q", 8)
    metadata: dict[str, Any] = {}
    for _ in range(header.count(value_count, 13)):
        key = header.text()
        if key in metadata:
            raise header.damaged(f"it has {shown(key)} twice")
        metadata[key] = header.value(header.number("I", 4))
    found = [header.tensor() for _ in range(header.count(tensor_count, 24))]
    return metadata, _placed(header, found, metadata.get("general.alignment", DEFAULT_ALIGNMENT))


def _placed(
    header: "_Header", found: list[tuple[str, TensorType, tuple[int, ...], int]], alignment: Any
) -> dict[str, StoredTensor]:
    """Return the tensors of a header, once they are known to be within the file."""
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise header.damaged(f"general.alignment is {shown(alignment)}")
    start = -(-header.place // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for name, kind, shape, offset in found:
        tensor = StoredTensor(name, kind, shape, header.data, start + offset)
        if name in tensors:
            raise header.damaged(f"it has the tensor {shown(name)} twice")
        if shape[-1] % kind.block or offset % alignment:
            raise header.damaged(f"{shown(name)} is {list(shape)} of {kind.name}, at byte {offset:,}")
        if tensor.start + tensor.bytes > len(header.data):
            raise WeightsError(
                f"{header.path} is cut off: {name} ends at byte {tensor.start + tensor.bytes:,}, and the file has "
                f"{len(header.data):,}. Download it again."
            )
        tensors[name] = tensor
    return tensors


class _Header:
    """The header of a file, read from front to back."""

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data, self.place = path, data, len(MAGIC)

    def damaged(self, reason: str) -> WeightsError:
        """Return an error about the file."""
        return WeightsError(f"{self.path} is damaged: {reason}. Download it again.")

    def count(self, claimed: int, least: int) -> int:
        """Return a number of entries of at least so many bytes each. Raises WeightsError where the file ends before."""
        if claimed * least > len(self.data) - self.place:
            raise WeightsError(
                f"{self.path} is cut off or damaged: at byte {self.place:,} it announces {claimed:,} entries, and it "
                f"has {len(self.data):,} bytes. Download it again."
            )
        return claimed

    def number(self, form: str, size: int) -> Any:
        """Return a single value of a format of `struct`."""
        self.count(1, size)
        (value,) = struct.unpack_from(f"<{form}", self.data, self.place)
        self.place += size
        return value

    def text(self) -> str:
        """Return a text behind its length."""
        length = self.count(self.number("Q", 8), 1)
        found = self.data[self.place : self.place + length]
        self.place += length
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"a text before byte {self.place:,} is no UTF-8") from None

    def value(self, kind: int) -> Any:
        """Return a value of metadata."""
        if kind in SCALARS:
            return self.number(*SCALARS[kind])
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise self.damaged(f"a value before byte {self.place:,} is of kind {kind}")
        kind, length = self.number("I", 4), self.number("Q", 8)
        if kind == TEXT:
            return [self.text() for _ in range(self.count(length, 8))]
        if kind not in SCALARS:
            raise self.damaged(f"a list before byte {self.place:,} is of kind {kind}")
        form, size = SCALARS[kind]
        values = struct.unpack_from(f"<{self.count(length, size)}{form}", self.data, self.place)
        self.place += length * size
        return list(values)

    def tensor(self) -> tuple[str, TensorType, tuple[int, ...], int]:
        """Return the name, type, shape and offset of a tensor."""
        name, axes = self.text(), self.number("I", 4)
        if not 0 < axes <= MOST_AXES:
            raise self.damaged(f"{shown(name)} has {axes} axes")
        sizes = [self.number("Q", 8) for _ in range(axes)]
        kind, offset = self.number("I", 4), self.number("Q", 8)
        if kind not in TYPES:
            known = ", ".join(each.name for each in TYPES.values())
            raise WeightsError(
                f"{self.path} holds {shown(name)} as {UNREAD.get(kind, f'type {kind}')}, which is not read; edgeformer "
                f"reads {known}."
            )
        if not all(sizes):
            raise self.damaged(f"{shown(name)} is {sizes[::-1]}")
        return name, TYPES[kind], tuple(reversed(sizes)), offset
