"""Sessions on disk: the tokens of a conversation and what they left in the cache, in the format of safetensors.

    8 bytes      length of the header, little-endian
    header       JSON: of each tensor its dtype, shape and place; `__metadata__` has texts alone
    tensors      one behind the other

Nothing is unpickled. A file is read only if every tensor has the name, type, shape and place that this bundle's cache
of so many tokens has, so its size is known before anything is read, and nothing in it decides how much is allocated.
Layout: https://github.com/huggingface/safetensors#format
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.caches.cache import Cache
from edgeformer.runtime.prefixes.prefix_cache import EndStates, Kept
from edgeformer.runtime.sessions.narrow_floats import BFLOAT16, FLOAT8
from edgeformer.runtime.steps.picture_rows import NUMBER_BITS
from edgeformer.runtime.text.tokenizer import Message

FORMAT = "edgeformer.session"
VERSION = "2"
CACHE = "cache_precision"
"""The key of the metadata that says that keys and values have scales per token."""

LARGEST_HEADER = 16 * 2**20
"""Bytes of a header at most: that of a conversation of a million tokens has its messages, 4 MB, and the tensors."""

DTYPES = {
    "F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(BFLOAT16),
    "F8_E4M3": np.dtype(FLOAT8), "I8": np.dtype(np.int8), "I64": np.dtype(np.int64),
}  # fmt: skip
"""Types of tensors by their names in the format; those that numpy lacks are bits here."""

Spec = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of a tensor."""


def write_session(path: Path, manifest: Manifest, kept: Kept, messages: Sequence[Message]) -> None:
    """Write a session; the file has its name only once it is complete. Raises RequestError if that is not possible."""
    states = kept.snapshot.states if kept.snapshot else [None] * len(kept.tensors)
    arrays = {"tokens": kept.tokens}
    for tensor, tokens, state in zip(manifest.cache.tensors(), kept.tensors, states, strict=True):
        array = tokens if tokens is not None else state
        assert array is not None
        arrays[tensor.past] = array
    if kept.snapshot and kept.snapshot.logits is not None:
        arrays["logits"] = kept.snapshot.logits.astype(np.float32)
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "bundle": bundle_hash(manifest),
        "precision": manifest.plan.precision,
        **({CACHE: "int8"} if manifest.has_scales_per_token else {}),
        "kind": kept.kind,
        "messages": json.dumps([dict(message) for message in messages]),
    }
    header = _header(metadata, {name: (array.shape, array.dtype) for name, array in arrays.items()})
    try:
        _write_atomically(path, [header, *(np.ascontiguousarray(array).data for array in arrays.values())])
    except OSError as error:
        raise RequestError(f"the session cannot be written to {path}: {error.strerror or error}.") from error


def read_session(path: Path, manifest: Manifest, cache: Cache) -> tuple[Kept, list[Message]]:
    """Return what a file holds and its messages; cache: any one of this model.

    Raises RequestError for a file that is not a session, that is damaged, or that is of another bundle.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start, header = _read_header(path, file, size)
            metadata = header.pop("__metadata__", None)
            messages = _check_metadata(path, metadata, manifest)
            length = _length(path, header, manifest)
            specs = _specs(manifest, cache, length, "logits" in header)
            if _parsed(_header(metadata, specs)) != {"__metadata__": metadata, **header}:
                raise _damaged(path, f"its tensors are not those of {length} tokens of this model")
            data = sum(_size(spec) for spec in specs.values())
            if size != start + data:
                raise _damaged(path, f"it has {size} bytes, and its header says {start + data}")
            arrays = {name: _read_array(file, spec) for name, spec in specs.items()}
    except OSError as error:
        raise RequestError(f"the session {path} cannot be read: {error.strerror or error}.") from error
    tokens = arrays["tokens"]
    limit = manifest.vocab_size + (0 if manifest.placeholder is None else 2**NUMBER_BITS)
    if tokens.min() < 0 or tokens.max() >= limit:
        raise _damaged(path, f"it has token ids outside 0 to {manifest.vocab_size - 1}")
    return _kept(manifest, cache, arrays, metadata["kind"]), messages


def bundle_hash(manifest: Manifest) -> str:
    """Return a hash of what decides about keys and values: graphs, weights, adapters, tokenizer; not of reports."""
    files = {name: entry.sha256 for name, entry in manifest.files.items() if not name.startswith("parity/")}
    files.pop("README.md", None)
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _kept(manifest: Manifest, cache: Cache, arrays: dict[str, NDArray[Any]], kind: str) -> Kept:
    tensors: list[NDArray[Any] | None] = []
    states: list[NDArray[Any] | None] = []
    layout = cache.row_layout(len(arrays["tokens"]))
    for tensor, (_, _, of_tokens) in zip(manifest.cache.tensors(), layout, strict=True):
        tensors.append(arrays[tensor.past] if of_tokens else None)
        states.append(None if of_tokens else arrays[tensor.past])
    snapshot = None if cache.trimmable else EndStates(states, arrays.get("logits"))
    return Kept(arrays["tokens"], tensors, snapshot, kind)


def _specs(manifest: Manifest, cache: Cache, length: int, logits: bool) -> dict[str, Spec]:
    """Return the tensors of a session of so many tokens, in the order of the file."""
    specs: dict[str, Spec] = {"tokens": ((length,), np.dtype(np.int64))}
    for tensor, (shape, dtype, _) in zip(manifest.cache.tensors(), cache.row_layout(length), strict=True):
        specs[tensor.past] = shape, dtype
    if logits and not cache.trimmable:
        specs["logits"] = (manifest.vocab_size,), np.dtype(np.float32)
    return specs


def _header(metadata: Any, specs: dict[str, Spec]) -> bytes:
    """Return the length of a header and the header."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": metadata}
    place = 0
    for name, spec in specs.items():
        end = place + _size(spec)
        header[name] = {"dtype": names[spec[1]], "shape": list(spec[0]), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that tensors begin at multiples of 8 bytes
    return len(text).to_bytes(8, "little") + text


def _parsed(header: bytes) -> Any:
    return json.loads(header[8:])


def _read_header(path: Path, file: BinaryIO, size: int) -> tuple[int, dict[str, Any]]:
    """Return where the tensors begin, and the header."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(LARGEST_HEADER, size - 8):
        raise _damaged(path, "it has no header of a session")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is no JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    return 8 + length, header


def _check_metadata(path: Path, metadata: Any, manifest: Manifest) -> list[Message]:
    """Return the messages. Raises RequestError for the session of another bundle, and for no session."""
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise _damaged(path, f"its header does not say {FORMAT}")
    if metadata.get("version") != VERSION:
        raise RequestError(f"{path} is a session of version {metadata.get('version')!r}; this reads version {VERSION}.")
    if metadata.get("precision") != manifest.plan.precision:
        raise RequestError(
            f"{path} is a session of a bundle in {metadata.get('precision')!r}, and this one is in "
            f"{manifest.plan.precision}. Load it with the bundle that wrote it."
        )
    if (metadata.get(CACHE) is not None) != manifest.has_scales_per_token:
        has, advice = ("a cache in int8", "with") if CACHE in metadata else ("the bundle's own cache", "without")
        raise RequestError(f"{path} is a session of {has}. Load the model {advice} cache_precision.")
    if metadata.get("bundle") != bundle_hash(manifest):
        raise RequestError(
            f"{path} is a session of another bundle: its graphs, weights or tokenizer differ. Load it with the bundle "
            "that wrote it; a bundle that was exported again needs new sessions."
        )
    if not isinstance(metadata.get("kind"), str):
        raise _damaged(path, "it does not say of which kind its keys and values are")
    try:
        messages = json.loads(metadata["messages"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, "its messages are no JSON") from error
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise _damaged(path, "its messages are no list of roles and contents")
    return messages


def _is_message(value: Any) -> bool:
    """Return whether a value is a message: names and texts, or a content of parts that are such themselves."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return False
    parts = value.get("content")
    are_parts = isinstance(parts, list) and all(_is_message(part) and "content" not in part for part in parts)
    return all(isinstance(each, str) or (name == "content" and are_parts) for name, each in value.items())


def _length(path: Path, header: dict[str, Any], manifest: Manifest) -> int:
    """Return the number of tokens."""
    entry = header.get("tokens")
    shape = entry.get("shape") if isinstance(entry, dict) else None
    length = shape[0] if isinstance(shape, list) and len(shape) == 1 else None
    if type(length) is not int or not 0 < length <= manifest.context_length:
        raise _damaged(path, f"it must have 1 to {manifest.context_length} tokens")
    return length


def _size(spec: Spec) -> int:
    shape, dtype = spec
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _read_array(file: BinaryIO, spec: Spec) -> NDArray[Any]:
    shape, dtype = spec
    return np.fromfile(file, dtype, int(np.prod(shape, dtype=np.int64))).reshape(shape)


def _write_atomically(path: Path, pieces: Sequence[Any]) -> None:
    """Write a file beside its place, and put it there when it is on the disk."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _damaged(path: Path, reason: str) -> RequestError:
    return RequestError(f"{path} is no session that can be read: {reason}.")
