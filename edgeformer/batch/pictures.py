"""Pictures of a row: in a column, or in the parts of its messages; their bytes are read when the row runs."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.batch.options import BatchOptions, Verb
from edgeformer.batch.pieces import Row
from edgeformer.batch.storage import open_url
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.media.pictures.picture_files import MOST_BYTES

COLUMNS = ("images", "image")
"""Columns that hold the pictures of rows where the job names none, the first that exists."""

VERBS: tuple[Verb, ...] = ("generate", "chat")
"""Verbs of rows with pictures."""

FIELDS = ("image_url", "image", "url", "path", "bytes", "source")
"""Fields of a part of a message that say where its picture is, the first that it has."""


@dataclass(frozen=True)
class PicturePrompt:
    """A prompt with pictures.

    Attributes:
        prompt: a text with a placeholder for each of them, or messages with a part {"type": "image"} for each.
        pictures: each its bytes, a data: URL, or a path or fsspec URL.
        folder: that relative paths begin in.
    """

    prompt: Any
    pictures: Sequence[str | bytes]
    folder: str

    def contents(self) -> list[bytes]:
        """Return the bytes of the pictures. Raises RequestError for one that cannot be read."""
        return [each if isinstance(each, bytes) else _read(each, self.folder) for each in self.pictures]


def find_pictures(options: BatchOptions, verb: Verb, manifest: Manifest, columns: Sequence[str]) -> str | None:
    """Return the column that holds the pictures of a job's rows; None without one.

    Raises RequestError for a column that is not there, and where the bundle or the verb reads no pictures.
    """
    reads = manifest.placeholder is not None and verb in VERBS
    if options.images is None:
        return next((name for name in COLUMNS if name in columns), None) if reads else None
    if not reads:
        able = "generate and chat read them" if manifest.placeholder is not None else "this bundle reads none"
        raise RequestError(f"images names a column of pictures, and {able}.")
    if options.images not in columns:
        raise RequestError(f"the input has no column {options.images!r}; it has {', '.join(map(repr, columns))}.")
    return options.images


def with_pictures(prompt: Any, row: Row, column: str | None, verb: Verb, path: str) -> Any:
    """Return a prompt with its pictures; as it is, where it has none.

    column: of the row's pictures; they are those of the parts of messages that name none themselves, or stand in front
    of the text of a chat. path: of the input file. Raises RequestError for what is no picture.
    """
    found = list(_places(None if column is None else row.get(column)))
    folder = path.rpartition("/")[0]
    if verb == "chat" and isinstance(prompt, str) and found:
        content = [*({"type": "image"} for _ in found), {"type": "text", "text": prompt}]
        return PicturePrompt([{"role": "user", "content": content}], found, folder)
    if verb == "chat" and isinstance(prompt, list):
        messages, pictures = _messages(prompt, iter(found))
        return PicturePrompt(messages, pictures, folder) if pictures else messages
    return PicturePrompt(prompt, found, folder) if found else prompt


def _messages(messages: Sequence[Any], column: Iterator[str | bytes]) -> tuple[list[Any], list[str | bytes]]:
    """Return messages whose pictures are parts {"type": "image"}, and the pictures in their order."""
    pictures, changed = list[str | bytes](), list[Any]()
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, Sequence) or isinstance(content, str):
            changed.append(message)
            continue
        parts = list[Any]()
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("image", "image_url", "input_image"):
                pictures.append(_picture_of(part, column))
                parts.append({"type": "image"})
            else:
                # Rows of Parquet have all fields of all parts.
                parts.append({k: v for k, v in part.items() if v is not None} if isinstance(part, Mapping) else part)
        changed.append({**message, "content": parts})
    return changed, [*pictures, *column]


def _picture_of(part: Mapping[str, Any], column: Iterator[str | bytes]) -> str | bytes:
    value = next((part[name] for name in FIELDS if part.get(name) is not None), None)
    own = list(_places(value)) or [each for each in [next(column, None)] if each is not None]
    if len(own) != 1:
        raise RequestError("a part of a message is a picture, and neither the part nor the column of pictures has one.")
    return own[0]


def _places(value: Any) -> Iterator[str | bytes]:
    """Yield the pictures of a cell: one, or a list of them; an object has its bytes, its URL or its path."""
    if value is None or value == "":
        return
    if isinstance(value, str | bytes):
        yield value
    elif isinstance(value, Mapping):
        inner = next((value[name] for name in ("bytes", "url", "path") if value.get(name) is not None), None)
        if not isinstance(inner, str | bytes):
            raise RequestError("a picture is an object without bytes, url or path.")
        yield inner
    elif isinstance(value, Sequence):
        for each in value:
            yield from _places(each)
    else:
        raise RequestError(f"a picture is {str(value)[:40]!r}; it must be a path, a URL, bytes or a list of these.")


def _read(place: str, folder: str) -> bytes:
    """Return the bytes of a picture at a data: URL, a URL of fsspec, or a path. Raises RequestError."""
    if place.startswith("data:"):
        head, _, data = place.partition(",")
        try:
            return base64.b64decode(data, validate=True) if head.endswith(";base64") else _no_base64()
        except (binascii.Error, ValueError):
            raise RequestError("a data: URL of a picture is not in base64.") from None
    inside = "://" in place or place.startswith("/") or not folder
    url = place if inside else f"{folder}/{place}"
    try:
        files, path = open_url(url)
        if files.size(path) > MOST_BYTES:
            raise RequestError(f"{url} has more than {MOST_BYTES:,} bytes, which a picture may have.")
        content: bytes = files.cat_file(path)
    except (OSError, ValueError) as error:
        raise RequestError(f"the picture {url[:200]} cannot be read: {error}.") from None
    return content


def _no_base64() -> bytes:
    raise ValueError
